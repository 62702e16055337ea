"""When a worker writes parts of outputs itself, and when it leaves them to others."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.bulk.results.part_writer import PartDependencies, PartWriter
from workers import output_parts
from workers.output_parts import LEFT_LOOKS, OutputParts


class Parts:
    """Parts that are ready, and a store that says whether there is one."""

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self.written = 0

    def write_next(self) -> bool:
        self.ready -= 1
        self.written += 1
        return True

    @contextmanager
    def snapshot(self) -> Iterator[Any]:
        parts = SimpleNamespace(has_claimable=lambda now: self.ready > 0)
        yield SimpleNamespace(now=lambda: None, parts=parts)


def worker_with(parts: Parts, monkeypatch: pytest.MonkeyPatch, *, runs_rows: bool) -> OutputParts:
    monkeypatch.setattr(output_parts, "PartWriter", lambda *arguments: cast(PartWriter, parts))
    dependencies = cast(PartDependencies, SimpleNamespace(store=parts))
    return OutputParts(dependencies, "worker_1", runs_rows=lambda: runs_rows)


def test_a_worker_without_rows_writes_every_part_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(ready=3)
    worker_with(parts, monkeypatch, runs_rows=False).look()
    assert parts.written == 3


def test_a_worker_that_runs_rows_writes_parts_that_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(ready=2)
    worker = worker_with(parts, monkeypatch, runs_rows=True)
    for _ in range(LEFT_LOOKS - 1):
        worker.look()
    assert parts.written == 0
    worker.look()
    assert parts.written == 2


def test_a_worker_that_runs_rows_leaves_parts_to_others_that_keep_up(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(ready=0)
    worker = worker_with(parts, monkeypatch, runs_rows=True)
    for ready in (1, 1, 0) * LEFT_LOOKS:
        parts.ready = ready
        worker.look()
    assert parts.written == 0
