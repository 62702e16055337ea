"""Image objects as an input: each is one row. Nothing of them is read but by the worker that runs it."""

from collections.abc import Iterator
from typing import Final

from nightshift.bulk.rows.records import InputFormat, InputObject, Row
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectUri

COUNTED_BYTES: Final = 1024
"""What an image counts for where an input's text is estimated by its bytes: 256 tokens, as one of 256 x 256
pixels has. Its file may be of any size."""
KEY_COLUMN: Final = "key"


def image_rows(key: str, shard: NewShard) -> Iterator[Row]:
    """A row for each object of a shard. Its key names it, unless the job says otherwise. `key`: of `uri`.

    One that is gone, or another than was planned, is found when it is read, and is the error of its row.
    """
    for index, each in enumerate(shard.sources):
        own_key = ObjectUri.parse(each.uri).key if shard.objects else key
        data = {"image": each.uri, KEY_COLUMN: own_key, "name": own_key.rstrip("/").rpartition("/")[2]}
        yield Row(index, data, each)


def image_object(uri: str, etag: str | None, file_bytes: int) -> InputObject:
    """An empty one counts, too: its row says that it is empty."""
    return InputObject(
        uri=uri,
        format=InputFormat.IMAGE,
        size_bytes=COUNTED_BYTES,
        row_count=1,
        rows_estimated=1,
        etag=etag,
        file_bytes=file_bytes,
    )
