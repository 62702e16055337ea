"""Part files have the rows that were put in, good and failed ones with one schema."""

import io
import json
import random
import threading
import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.bulk.results import shard_results
from nightshift.bulk.results.output_rows import Chunk
from nightshift.bulk.results.part_encoding import PartSchema, lines, part_encoder
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import encode_segment, value_column
from nightshift.bulk.results.shard_results import READ_AT_ONCE, ShardResults
from nightshift.endpoints.encoders.classifications import Classifications
from nightshift.endpoints.encoders.embeddings import Embeddings
from nightshift.endpoints.results import TRUNCATED, Result, count_bytes
from nightshift.endpoints.texts.chat import Chat
from nightshift.jobs import Usage
from nightshift.objectstore import MIB, DirectoryStore, ObjectDamaged, ObjectStore
from nightshift.objectstore.objects import DAMAGED_TRIES_MAX
from tests.helpers.fakes import a_shard_head
from tests.unit.nightshift.bulk.results.shards import (
    CHAT,
    EMBEDDINGS,
    embedded,
    embeddings,
    listed,
    not_run,
    parquet,
    refused,
    said,
    segment_of,
    table_of,
    windows,
)


def test_results_come_by_row_and_the_first_of_a_row_counts(objects: ObjectStore) -> None:
    [window] = windows(objects, [said(2), said(0, "first")], [said(1), said(0, "second")])

    assert window.rows == [0, 1, 2]
    assert window.results()[0].values["text"] == "first"


@pytest.mark.parametrize("memory_bytes_max", [0, 2**30])
def test_a_shard_is_read_some_rows_at_a_time(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, memory_bytes_max: int
) -> None:
    monkeypatch.setattr(shard_results, "WINDOW_BYTES", 1000)
    texts = ["x" * size for size in (400, 300, 5000, 10, 900, 20, 30)]
    rows = [said(row, text) for row, text in enumerate(texts)]
    segments = listed(objects, rows[4:], rows[:4])

    with ShardResults(objects, segments, memory_bytes_max) as results:
        read_texts = [[result.values["text"] for result in window.results()] for window in results.windows()]

    assert [text for texts in read_texts for text in texts] == texts
    assert len(read_texts) >= 4
    assert all(sum(map(len, map(str, texts))) <= 1000 or len(texts) == 1 for texts in read_texts)


def test_rows_are_taken_of_the_segments_that_they_lie_in(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken of the table of all segments, each window would copy the whole shard."""
    monkeypatch.setattr(shard_results, "WINDOW_BYTES", 1000)
    opened: list[int] = []
    table = shard_results.SegmentStreams.table
    monkeypatch.setattr(
        shard_results.SegmentStreams,
        "table",
        lambda streams, number: opened.append(number) or table(streams, number),
    )
    segments = listed(objects, *([said(4 * n + row, "x" * 100) for row in range(4)] for n in range(20)))

    with ShardResults(objects, segments) as results:
        all_windows = list(results.windows())
        assert len(opened) <= len(all_windows) + len(segments)
        opened.clear()
        assert len(results.of_rows([9, 10, 70])) == 3
        assert opened == [2, 17]


def test_the_segments_of_a_large_shard_are_never_whole_in_memory(objects: ObjectStore) -> None:
    texts = [random.Random(row).randbytes(1500).hex() for row in range(4000)]
    segments = listed(objects, *([said(row, texts[row]) for row in range(n, 4000, 2)] for n in range(2)))
    assert min(segment.size_bytes for segment in segments) > 4 * MIB

    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        most = 0
        with ShardResults(objects, segments) as results:
            for window in results.windows():
                most = max(most, pa.total_allocated_bytes() - before)
                del window
        _, python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most + python < 4 * MIB
    with ShardResults(objects, segments) as results:
        read_texts = [result.values["text"] for window in results.windows() for result in window.results()]
    assert read_texts == texts


@pytest.mark.parametrize("memory_bytes_max", [0, 2**30])
def test_segments_are_read_at_the_same_time_and_given_in_their_order(
    objects: ObjectStore, memory_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = listed(objects, *([said(row)] for row in range(READ_AT_ONCE + 2)))
    all_read = threading.Barrier(READ_AT_ONCE)
    stream = DirectoryStore.stream

    def together(store: DirectoryStore, key: str, *range: int) -> Iterator[bytes]:
        if key in [segment.key for segment in segments[:READ_AT_ONCE]]:
            all_read.wait(10)
        yield from stream(store, key, *range)

    monkeypatch.setattr(DirectoryStore, "stream", together)
    monkeypatch.setattr(DirectoryStore, "head", not_asked)
    with ShardResults(objects, segments, memory_bytes_max) as results:
        assert [row for window in results.windows() for row in window.rows] == [*range(READ_AT_ONCE + 2)]
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("segments")]


def not_asked(*arguments: object) -> None:
    raise AssertionError("its size is known")


@pytest.mark.parametrize("memory_bytes_max", [0, 2**30])
@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_a_damaged_segment_is_read_again_and_then_refused(
    objects: ObjectStore, memory_bytes_max: int, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = listed(objects, [said(0)], [said(1)])
    reads: list[str] = []
    stream = DirectoryStore.stream

    def damaged(store: DirectoryStore, key: str, *range: int) -> Iterator[bytes]:
        reads.append(key)
        for piece in stream(store, key, *range):
            is_good = key != segments[1].key or reads.count(key) > good_after
            changed = piece[:-1] if damage == "cut" else bytes([piece[0] ^ 1]) + piece[1:]
            yield piece if is_good else changed

    monkeypatch.setattr(DirectoryStore, "stream", damaged)
    good_after = 1
    with ShardResults(objects, segments, memory_bytes_max) as results:
        assert [row for window in results.windows() for row in window.rows] == [0, 1]
    reads.clear()
    good_after = 100
    with pytest.raises(ObjectDamaged), ShardResults(objects, segments, memory_bytes_max):
        pass
    assert reads.count(segments[1].key) == DAMAGED_TRIES_MAX


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)), st.integers(1, 5))
def test_rows_that_finished_in_any_order_come_in_order(order: list[int], segment_rows: int) -> None:
    tables = [
        encode_segment(CHAT, [said(row) for row in order[start : start + segment_rows]]).data
        for start in range(0, 12, segment_rows)
    ]
    store = Held(tables)
    with ShardResults(store, store.segments) as results:  # type: ignore[arg-type]
        rows = [row for window in results.windows() for row in window.rows]
    assert rows == [*range(12)]


class Held:
    """Objects in memory."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self.segments = [segment_of(*numbered) for numbered in enumerate(data)]
        self._data = {segment.key: content for segment, content in zip(self.segments, data, strict=True)}

    def stream(self, key: str, start: int, end: int) -> Iterator[bytes]:
        yield self._data[key][start:end]


def test_good_and_failed_rows_have_one_schema(objects: ObjectStore) -> None:
    [window] = windows(objects, [said(0), refused(1)])
    chunk = Chunk(window, [not_run(2)])

    good, bad = (parquet(Chat(), half) for half in (Chunk(chunk.succeeded()), chunk.failed()))

    assert good.schema == bad.schema
    assert good.to_pylist() == [
        {
            "custom_id": "r0",
            "outcome": "succeeded",
            "status_code": 200,
            "error_code": None,
            "error_message": None,
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "text": "hello",
            "finish_reason": "stop",
            "tool_calls": None,
            "reasoning": None,
        }
    ]
    failed = [(row["custom_id"], row["outcome"], row["error_code"], row["text"]) for row in bad.to_pylist()]
    assert failed == [("r1", "errored", "too_long", None), ("r2", "expired", "batch_expired", None)]


def test_rows_that_were_not_run_lie_between_the_others(objects: ObjectStore) -> None:
    [window] = windows(objects, [said(0), said(3), refused(5)])
    chunk = Chunk(window, [not_run(1), not_run(2), not_run(4)])

    assert parquet(Chat(), chunk)["custom_id"].to_pylist() == [f"r{row}" for row in range(6)]
    told = [json.loads(line)["custom_id"] for _, line in lines(chunk, native=True)]
    assert told == [f"r{row}" for row in range(6)]


def test_vectors_are_lists_of_one_size(objects: ObjectStore) -> None:
    vectors = [array("f", [row, 0.5]).tobytes() for row in range(3)]
    rows = [embedded(row, {"embedding": vector}) for row, vector in enumerate(vectors)]
    window = embeddings(objects, *rows, refused(3, EMBEDDINGS))

    table = parquet(Embeddings(), Chunk(window), dimensions=2)

    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 2)
    assert table["embedding"].to_pylist() == [[0, 0.5], [1, 0.5], [2, 0.5], None]


@pytest.mark.parametrize("dimensions", [2, None])
def test_vectors_may_have_half_the_bytes(objects: ObjectStore, dimensions: int | None) -> None:
    window = embeddings(objects, embedded(0, {"embedding": array("f", [0.1, 65_504]).tobytes()}))

    table = parquet(Embeddings(), Chunk(window), dimensions=dimensions, vector_type="float16")

    assert table.schema.field("embedding").type.value_type == pa.float16()
    assert table["embedding"].to_pylist() == [[pytest.approx(0.1, rel=1e-3), 65_504]]


def test_a_vector_of_another_size_is_left_out_and_its_body_has_it(objects: ObjectStore) -> None:
    short = embedded(1, {"embedding": array("f", [1.0]).tobytes()})
    window = embeddings(objects, embedded(0, {"embedding": bytes(8)}), short)

    rows = parquet(Embeddings(), Chunk(window), dimensions=2, keeps_body=True).to_pylist()

    assert [row["embedding"] for row in rows] == [[0, 0], None]
    assert json.loads(rows[1]["body"])["data"][0]["embedding"] == [1.0]


def test_vectors_that_may_have_any_size_are_lists_of_any_length(objects: ObjectStore) -> None:
    sizes = [3, 0, 1, None, 7]
    vectors = [None if size is None else array("f", range(size)).tobytes() for size in sizes]
    rows = [embedded(row, {"embedding": vector}) for row, vector in enumerate(vectors)]
    window = embeddings(objects, *rows)

    table = parquet(Embeddings(), Chunk(window, [not_run(5)]))

    assert table.schema.field("embedding").type == pa.list_(pa.float32())
    expected = [None if size is None else [*range(size)] for size in (*sizes, None)]
    assert table["embedding"].to_pylist() == expected


def test_rows_whose_inputs_were_cut_are_counted(objects: ObjectStore) -> None:
    counts = [None, 0, 2, 1]
    rows = [
        embedded(row, {"embedding": bytes(8), TRUNCATED: None if count is None else count_bytes(count)})
        for row, count in enumerate(counts)
    ]
    window = embeddings(objects, *rows)
    file = part_encoder("parquet", PartSchema(Embeddings(), dimensions=2))

    table = table_of(file, Chunk(window))

    assert table.schema.field("truncated_inputs").type == pa.int32()
    assert table["truncated_inputs"].to_pylist() == counts
    assert file.tally.truncated == 2
    body = json.loads(window.results()[2].with_body().body_text or "")
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "truncated_inputs": 2}
    assert Embeddings().values(body)[TRUNCATED] == count_bytes(2)


def test_results_of_the_release_before_have_no_counts(objects: ObjectStore) -> None:
    window = embeddings(objects, embedded(0, {"embedding": bytes(8)}))
    table = window.table.drop_columns([value_column(TRUNCATED)])

    [row] = parquet(Embeddings(), Chunk(replace(window, table=table)), dimensions=2).to_pylist()

    assert (row["embedding"], row["truncated_inputs"]) == ([0, 0], None)


def test_a_row_with_several_vectors_has_them_in_its_body_alone(objects: ObjectStore) -> None:
    request = Embeddings().parse({"model": "demo", "input": ["a", "b"]})
    result = Embeddings().result(request, [bytes(8), bytes(8)], 2)
    window = embeddings(objects, RowResult.from_result(EMBEDDINGS, 0, "r0", result))

    [row] = parquet(Embeddings(), Chunk(window), dimensions=2, keeps_body=True).to_pylist()

    assert row["embedding"] is None
    assert len(json.loads(row["body"])["data"]) == 2


def test_half_a_character_is_escaped_where_only_text_may_be(objects: ObjectStore) -> None:
    half = replace(said(0, "a\udc00"), custom_id="\ud83d")
    [window] = windows(objects, [half])

    [row] = parquet(Chat(), Chunk(window)).to_pylist()

    assert (row["custom_id"], row["text"]) == ("\\ud83d", "a\\udc00")
    [(_, line)] = lines(Chunk(window), native=True)
    assert json.loads(line)["custom_id"] == "\ud83d"


def test_the_same_rows_give_the_same_bytes_and_few_row_groups(objects: ObjectStore) -> None:
    all_windows = windows(objects, *([said(row) for row in pair] for pair in pairwise(range(50))))

    once, again = (
        b"".join(piece for window in all_windows for piece in file.add(Chunk(window))) + b"".join(file.end())
        for file in (part_encoder("parquet", PartSchema(Chat())) for _ in range(2))
    )

    assert once == again
    assert pq.ParquetFile(io.BytesIO(once)).num_row_groups == 1


def test_the_bytes_of_a_part_come_as_its_rows_do(objects: ObjectStore) -> None:
    """The memory that a part takes does not grow with it."""
    vector = random.Random(1).randbytes(1536)
    rows = [embedded(row, {"embedding": vector, TRUNCATED: None}) for row in range(2000)]
    all_windows = windows(objects, rows, head=EMBEDDINGS)
    assert len(all_windows) > 1, "a shard is not one window"
    file = part_encoder("parquet", PartSchema(Embeddings(), dimensions=384))

    put = given = most = 0
    for window in all_windows * 8:
        put += window.table.nbytes
        given += sum(map(len, file.add(Chunk(window))))
        most = max(most, put - given)
    assert put > 5 * most
    assert most < 6 * MIB


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_rows_and_tokens_are_counted(objects: ObjectStore, format: str) -> None:
    [window] = windows(objects, [said(0), said(1), refused(2)])
    file = part_encoder(format, PartSchema(Chat()))

    file.add(Chunk(window, [not_run(3)]))

    tally = file.tally
    assert (tally.rows, tally.succeeded, tally.failed) == (4, 2, 2)
    assert (tally.prompt_tokens, tally.completion_tokens) == (6, 4)


def test_scores_are_a_label_a_number_and_lists(objects: ObjectStore) -> None:
    head = a_shard_head(endpoint="/v1/classifications")
    body = {"data": [{"scores": [{"label": "ham", "score": 0.25}, {"label": "spam", "score": 0.75}]}]}
    values = Classifications().values(body)
    done = RowResult.from_result(head, 0, "r0", Result(200, Usage(3), values))
    [window] = windows(objects, [done, refused(1, head)], head=head)

    table = parquet(Classifications(), Chunk(window))

    columns = [table.column(name).to_pylist() for name in ("label", "score", "labels", "scores")]
    assert columns == [["spam", None], [0.75, None], ['["ham","spam"]', None], [[0.25, 0.75], None]]
    assert table.schema.field("score").type == pa.float32()
