"""Results of a shard's rows, the segments that hold them, and part files made of these."""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.bulk.results.output_rows import Chunk, Missing
from nightshift.bulk.results.part_encoding import PartEncoder, PartSchema, part_encoder
from nightshift.bulk.results.row_results import NotExecuted, RowResult, ShardHead
from nightshift.bulk.results.segments import encode_segment
from nightshift.bulk.results.shard_results import ShardResults, Window
from nightshift.endpoints import Endpoint
from nightshift.endpoints.results import Result, Values
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.generation import Choice
from nightshift.jobs import Segment, StopReason, Usage
from nightshift.objectstore import ObjectStore
from tests.helpers.fakes import a_shard_head

CHAT = a_shard_head()
EMBEDDINGS = a_shard_head(endpoint="/v1/embeddings")
NOTHING = object()  # kept of a row


def kept_text(kept: object) -> str | None:
    return None if kept is NOTHING else json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def said(row: int, text: str = "hello", kept: object = NOTHING) -> RowResult:
    result = Result(200, Usage(3, 2), Chat().values_of(Choice(text, "stop")))
    return RowResult.from_result(CHAT, row, f"r{row}", result, kept_text(kept))


def refused(row: int, head: ShardHead = CHAT, kept: object = NOTHING) -> RowResult:
    body = {"error": {"code": "too_long", "message": "Too long."}}
    return RowResult.from_result(head, row, f"r{row}", Result(400, Usage(), body=body), kept_text(kept))


def not_run(row: int, kept: object = NOTHING) -> Missing:
    reason, text = StopReason.EXPIRED, kept_text(kept)
    return Missing(row, NotExecuted(custom_id=f"r{row}", id="batch_req_1", reason=reason, kept=text))


def embedded(row: int, values: Values) -> RowResult:
    return RowResult.from_result(EMBEDDINGS, row, f"r{row}", Result(200, Usage(3), values))


def segment_of(seq: int, data: bytes) -> Segment:
    return Segment(
        key=f"segments/acme/job_1/000000/t1-{seq:06d}.arrow",
        term=1,
        seq=seq,
        succeeded=1,
        failed=0,
        usage=Usage(),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def listed(objects: ObjectStore, *segments: Iterable[RowResult], head: ShardHead = CHAT) -> list[Segment]:
    """The segments, stored."""

    def stored() -> Iterator[Segment]:
        for seq, results in enumerate(segments):
            data = encode_segment(head, list(results)).data
            segment = segment_of(seq, data)
            objects.put(segment.key, data)
            yield segment

    return list(stored())


def windows(objects: ObjectStore, *segments: Sequence[RowResult], head: ShardHead = CHAT) -> list[Window]:
    with ShardResults(objects, listed(objects, *segments, head=head)) as results:
        return [*results.windows()]


def embeddings(objects: ObjectStore, *rows: RowResult) -> Window:
    """The window of a shard of embeddings."""
    [window] = windows(objects, rows, head=EMBEDDINGS)
    return window


def table_of(file: PartEncoder, *chunks: Chunk) -> pa.Table:
    data = b"".join(piece for chunk in chunks for piece in file.add(chunk)) + b"".join(file.end())
    return pq.read_table(io.BytesIO(data))


def parquet(endpoint: Endpoint, *chunks: Chunk, **options: Any) -> pa.Table:
    return table_of(part_encoder("parquet", PartSchema(endpoint, **options)), *chunks)
