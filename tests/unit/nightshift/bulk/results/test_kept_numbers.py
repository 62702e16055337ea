"""Kept numbers are those of the input, digit by digit, whatever becomes of their row, in each format."""

import io
import json

import pyarrow.parquet as pq

from nightshift.bulk.results.output_rows import Chunk, Missing
from nightshift.bulk.results.part_encoding import PartSchema, part_encoder
from nightshift.bulk.results.row_results import NotExecuted, RowResult
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.generation import Choice
from nightshift.jobs import StopReason, Usage
from nightshift.objectstore import DirectoryStore
from tests.helpers.fakes import a_shard_head
from tests.unit.nightshift.bulk.results.test_part_encoding import windows

KEPT = '{"price":1.10,"large":12345678901234567890.12345678901,"power":1e5,"zero":-0,"in":{"a":[0.50,2]}}'
CELLS = {
    "price": "1.10",
    "large": "12345678901234567890.12345678901",
    "power": "1e5",
    "zero": "-0",
    "in": '{"a":[0.50,2]}',
}
ANSWER = Result(200, Usage(3, 2), Chat().values_of(Choice("hello", "stop")))
RAN = RowResult.from_result(a_shard_head(), 0, "r0", ANSWER, KEPT)
NOT_RUN = NotExecuted(custom_id="r1", id="b", reason=StopReason.EXPIRED, kept=KEPT)


def test_a_line_has_them_as_they_are_written() -> None:
    for row in (RAN, NOT_RUN):
        assert f',"columns":{KEPT},'.encode() in row.native_line()
        assert json.loads(row.native_line())["custom_id"] == row.custom_id


def test_cells_of_parquet_have_them_as_they_are_written(tmp_path) -> None:
    [window] = windows(DirectoryStore(tmp_path), [RAN])
    encoder = part_encoder("parquet", PartSchema(Chat(), keep_columns=tuple(CELLS)))
    table = pq.read_table(
        io.BytesIO(b"".join(encoder.add(Chunk(window, [Missing(1, NOT_RUN)])) + encoder.end()))
    )

    assert table.select(list(CELLS)).to_pylist() == [CELLS, CELLS]
