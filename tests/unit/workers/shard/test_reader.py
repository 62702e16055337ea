"""Rows are read ahead by a thread of their own: so many rows and characters, tokenised in batches."""

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from nightshift.bulk.rows.inputs import Row
from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.errors import InvalidRequest, StorageUnavailable
from nightshift.jobs import ShardState
from tests.unit.workers.scripted import ScriptedServer, chat_body, claim_bulk
from tests.unit.workers.shard.helpers import CONFIG, Ground, batch_line, finished
from workers.serving.model_server import Inference
from workers.shard import reader as reading
from workers.shard.reader import AHEAD_CHARS, AHEAD_ROWS, BATCH_ROWS, Reader, held_chars
from workers.shard.row import ShardRow


class Tokenizing(ScriptedServer):
    """Tokenises, and notes what it was given at a time."""

    def __init__(self) -> None:
        super().__init__("demo", echo=True)
        self.batches: list[int] = []
        self.refuses_to_tokenize: str | None = None

    def tokenize(self, endpoint: Endpoint, requests: Sequence[ModelRequest]) -> list[Any]:
        self.batches.append(len(requests))
        return [self._tokens(request) for request in requests]

    def submit(self, inference: Inference) -> None:
        if isinstance(inference.tokens, InvalidRequest):
            raise inference.tokens
        super().submit(inference)

    def _tokens(self, request: ModelRequest) -> Any:
        assert isinstance(request, GenerationRequest)
        text = json.dumps(request.model_dump())
        if self.refuses_to_tokenize is not None and self.refuses_to_tokenize in text:
            return InvalidRequest("The text is refused.", param="messages")
        return [list(text.encode())]


@pytest.fixture
def model() -> Tokenizing:
    return Tokenizing()


MakeReader = Callable[..., tuple[Reader, threading.Semaphore]]


class Input:
    """Rows that are there once `let` was called for them, and the number that was read."""

    def __init__(self, rows: int, text: str = "row") -> None:
        self.rows = rows
        self.text = text
        self.read = 0
        self.error: Exception | None = None
        self._let = threading.Semaphore(0)

    def let(self, rows: int) -> None:
        self._let.release(rows)

    def __call__(self, *args: object, **kwargs: object) -> Iterator[Row]:
        for number in range(self.rows):
            self._let.acquire()
            self.read += 1
            yield Row(number, {"custom_id": f"r{number}", "body": chat_body(f"{self.text} {number}")})
        if self.error is not None:
            raise self.error


@pytest.fixture
def reader_of(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeReader]:
    made: list[Reader] = []

    def make(input: Input, done: Collection[int] = ()) -> tuple[Reader, threading.Semaphore]:
        """A reader, and what it signals."""
        monkeypatch.setattr(reading, "rows_of", input)
        ground.plan(1)
        signals, claim = threading.Semaphore(0), claim_bulk(ground.store)
        reader = Reader(claim, ground.dependencies, CONFIG, on_rows=signals.release)
        made.append(reader)
        reader.start()
        reader.open(done)
        return reader, signals

    yield make
    for reader in made:
        reader.close()


def taken(reader: Reader, signals: threading.Semaphore) -> list[ShardRow]:
    """All rows to the end of the input."""
    rows = []
    while reader.has_more:
        row = reader.take()
        if row is None:
            assert signals.acquire(timeout=10), "the reader is silent"
        else:
            rows.append(row)
    return rows


def test_all_rows_come_in_order_but_those_that_are_done_in_batches_that_grow_to_a_limit(
    reader_of: MakeReader, model: Tokenizing
) -> None:
    input = Input(rows=1000)
    input.let(1000)
    reader, signals = reader_of(input, done={0, 5, 999})

    rows = taken(reader, signals)

    assert [row.number for row in rows] == [n for n in range(1000) if n not in {0, 5, 999}]
    assert reader.total == 1000
    assert rows[0].custom_id == "r1"
    assert all(row.tokens for row in rows)
    assert sum(model.batches) == 997
    assert model.batches[:6] == [8, 16, 32, 64, 128, 256]
    assert max(model.batches) == BATCH_ROWS


@pytest.mark.parametrize(
    ("rows", "text", "ahead_min", "ahead_max"),
    [
        (3 * AHEAD_ROWS, "row", AHEAD_ROWS, AHEAD_ROWS + BATCH_ROWS),
        (40, "x" * (AHEAD_CHARS // 10), 1, 20),
    ],
    ids=["rows", "characters"],
)
def test_a_reader_waits_once_so_much_is_ahead(
    reader_of: MakeReader, rows: int, text: str, ahead_min: int, ahead_max: int
) -> None:
    input = Input(rows, text)
    input.let(rows)
    reader, signals = reader_of(input)
    read_before = stands_still(reader)

    assert ahead_min <= read_before <= ahead_max
    assert input.read == read_before
    assert len(taken(reader, signals)) == rows


def stands_still(reader: Reader) -> int:
    """Waits until the reader waits for rows to be taken. Returns how many are ahead."""
    with reader._changed:
        while not reader._is_full:
            reader._changed.wait(0.01)
        return len(reader._ahead)


def test_rows_run_while_others_are_still_to_come(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first eight of them, of an input that is slow."""
    input = Input(rows=20)
    monkeypatch.setattr(reading, "rows_of", input)
    input.let(8)
    runner, model = ground.run(1), ground.model
    with model.arrived:
        assert model.arrived.wait_for(lambda: len(model.submitted) == 8, timeout=10)
    input.let(12)
    finished(runner)

    assert len(ground.by_id) == 20
    assert ground.state is ShardState.DONE


def test_the_model_is_given_the_tokens_and_a_text_it_refuses_is_a_failed_row(
    ground: Ground, model: Tokenizing
) -> None:
    model.refuses_to_tokenize = "bad"
    finished(ground.run([batch_line(0), batch_line(1, "bad"), batch_line(2)]))

    tokens = {inference.identity.name[-1]: inference.tokens for inference in model.submitted}
    assert json.loads(bytes(tokens["0"][0]))["messages"][0]["content"] == "row 0"
    results = ground.by_id
    assert [results[f"r{n}"].status_code for n in range(3)] == [200, 400, 200]
    assert results["r1"].body["error"]["message"] == "The text is refused. It is row 2 of 'file-input'."


def test_a_reader_that_fails_unforeseen_does_not_keep_its_shard_waiting(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> Iterator[Row]:
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(reading, "rows_of", broken)
    finished(ground.run(1))

    assert ground.state is ShardState.QUEUED


def test_rows_before_an_unreadable_one_are_run_to_their_end(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, model: Tokenizing
) -> None:
    model.echo = False
    input = Input(rows=3)
    input.error = StorageUnavailable("the store is away")
    input.let(3)
    monkeypatch.setattr(reading, "rows_of", input)
    runner = ground.run(1)
    ground.answer(*ground.begun(3))
    finished(runner)

    assert set(ground.by_id) == {"r0", "r1", "r2"}
    assert ground.state is ShardState.QUEUED
    assert (ground.fault or "").startswith("The input cannot be read at present")


def test_token_ids_count_as_text_that_is_ahead() -> None:
    assert held_chars({"model": "m", "input": [[7] * 100, [8] * 100]}) > 1000
    assert held_chars({"model": "m", "input": "x" * 50}) < 100
