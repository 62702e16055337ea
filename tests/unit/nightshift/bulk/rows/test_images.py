"""Image objects as rows: one an object, whatever its bytes are."""

from dataclasses import replace

import pytest

from nightshift.bulk.rows.inputs import BadRow, InputFormat, Row, describe, format_of, iter_rows
from nightshift.bulk.rows.requests import RowRequest, to_request
from nightshift.jobs import JobSpec, NewShard, ShardObject
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import a_job, a_shard

KEY = "photos/date=2026-11-20/ä b.JPG"
URI = "s3://bucket/" + KEY


def shard(etag: str | None = None) -> NewShard:
    return a_shard(InputFormat.IMAGE, URI, source_etag=etag)


def shard_of(*objects: ShardObject) -> NewShard:
    return a_shard(InputFormat.IMAGES, objects[0].uri, objects=objects)


def spec(**template: str) -> JobSpec:
    return a_job(
        endpoint="/v1/embeddings",
        input="s3://bucket/photos/",
        template={"model": "m", "input": "{{image}}", **template},
    )


def rows(store: ObjectStore, shard: NewShard) -> list[Row | BadRow]:
    return list(iter_rows(store, KEY, shard, line_bytes_max=100))


@pytest.mark.parametrize("ending", ["jpg", "JPEG", "png", "webp", "gif", "bmp", "tif", "tiff"])
def test_the_ending_says_that_an_object_is_an_image(ending: str) -> None:
    assert format_of(f"photos/a.{ending}") is InputFormat.IMAGE


@pytest.mark.parametrize("content", [b"", b"no image at all"])
def test_an_object_is_one_row_and_is_not_read(store: ObjectStore, content: bytes) -> None:
    """An empty one too: the row says what is wrong with it."""
    info = store.put(KEY, [content])
    described = describe(store, info, URI)
    assert (described.row_count, described.format, described.etag) == (1, InputFormat.IMAGE, info.etag)
    assert described.size_bytes > 0, "one of no bytes would get no shard"
    assert rows(store, shard(info.etag)) == [
        Row(0, {"image": URI, "key": KEY, "name": "ä b.JPG"}, ShardObject(URI, info.etag))
    ]


def test_a_row_is_named_by_its_key_unless_the_job_names_a_column(store: ObjectStore) -> None:
    store.put(KEY, [b"."])
    for id_column, wanted in ((None, KEY), ("name", "ä b.JPG")):
        request = to_request(rows(store, shard())[0], replace(spec(), id_column=id_column), shard())
        assert isinstance(request, RowRequest)
        assert (request.custom_id, request.body["input"]) == (wanted, URI)


def test_a_shard_has_a_row_for_each_of_its_objects_in_order(store: ObjectStore) -> None:
    """Columns that folders name are those of each row's own object."""
    objects = [
        ShardObject(f"s3://bucket/photos/day={number}/{number}.jpg", f"etag-{number}") for number in range(3)
    ]
    many = shard_of(*objects)
    assert [to_request(row, spec(user="{{day}}"), many) for row in rows(store, many)] == [
        RowRequest(
            f"photos/day={number}/{number}.jpg",
            {"model": "m", "input": image.uri, "user": str(number)},
            object=image,
        )
        for number, image in enumerate(objects)
    ]


def test_a_file_uri_is_named_by_its_path(store: ObjectStore) -> None:
    many = shard_of(ShardObject("file:///srv/a%20b.png", "1"), ShardObject("file:///srv/c.png", "2"))
    keys = [row.data["key"] for row in rows(store, many) if isinstance(row, Row)]
    assert keys == ["srv/a b.png", "srv/c.png"]
