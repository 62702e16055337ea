"""Interactive requests beside bulk, measured on an engine and a clock whose every step is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.mixing import (
    Load,
    Measured,
    arrival_times,
    bulk_requests,
    interactive_requests,
    measure,
    percentile,
    run,
)
from workers.engine import Output, Request, SamplingParams


class SlowEngine:
    """Gives every request a token per step. A step takes a second of its clock, the one to measure with."""

    def __init__(self, slots: int = 100) -> None:
        self.time = 0.0
        self.requests: dict[str, int] = {}
        self.aborted: set[str] = set()
        self._slots = slots

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def add(self, request: Request) -> None:
        self.requests[request.id] = request.sampling.max_tokens or 1

    def abort(self, request_id: str) -> None:
        self.aborted.add(request_id)
        del self.requests[request_id]

    def step(self) -> list[Output]:
        self.time += 1.0
        outputs = []
        for id in list(self.requests)[: self._slots]:
            self.requests[id] -= 1
            reason = None if self.requests[id] else "length"
            if reason:
                del self.requests[id]
            outputs.append(Output(id, "", [1], reason, 1, 1, 0))  # type: ignore[arg-type]
        return outputs


def requests(name: str, count: int, max_tokens: int) -> list[Request]:
    sampling = SamplingParams(max_tokens=max_tokens)
    return [Request(f"{name}{index}", [5], sampling) for index in range(count)]


def endless_bulk() -> Iterator[Request]:
    return iter(requests("bulk", 10_000, max_tokens=4))


def test_time_to_first_token_counts_from_when_the_request_was_due() -> None:
    engine = SlowEngine()
    load = Load(10, 0, requests("chat", 2, 3), [1.0, 2.5])
    # The first is seen at once (the clock waits for it) and has its token a second later. The second is due
    # in the middle of a step that ends at 3.0, and has its token at 4.0.
    assert run(engine, load, engine).ttft_seconds == pytest.approx([1.0, 1.5])


def test_bulk_counts_from_the_end_of_the_ramp_and_never_runs_dry() -> None:
    engine = SlowEngine()
    measured = run(engine, Load(seconds=10, ramp_seconds=5, bulk=endless_bulk(), num_bulk_requests=3), engine)
    # Three requests are always there; steps that end at 5, 6, ... 14 count.
    assert measured == Measured(10, bulk_tokens=30, ttft_seconds=[])
    assert measured.bulk_tokens_per_second == pytest.approx(3.0)


def test_tokens_of_interactive_requests_are_not_counted_as_bulk() -> None:
    engine = SlowEngine()
    load = Load(10, 0, requests("chat", 1, 100), [0.0], endless_bulk(), 2)
    assert run(engine, load, engine).bulk_tokens == 2 * 9, "steps end at 1 to 9 within the time"


def test_whatever_is_left_is_aborted_so_that_the_next_part_starts_empty() -> None:
    engine = SlowEngine()
    run(engine, Load(10, 0, requests("chat", 1, 100), [0.0], endless_bulk(), 2), engine)
    assert not engine.has_work
    assert "chat0" in engine.aborted


def test_an_interactive_request_that_waits_past_the_end_is_waited_for() -> None:
    engine = SlowEngine(slots=1)
    load = Load(5, 0, requests("chat", 1, 1), [4.5], endless_bulk(), 1)
    (ttft,) = run(engine, load, engine).ttft_seconds
    assert engine.time - 4.5 >= ttft >= 1.0


def test_the_report_sets_mixed_against_alone() -> None:
    engine = SlowEngine()
    report = measure(
        engine, engine, "tiny", rate=0.2, seconds=50, ramp_seconds=5, num_bulk_requests=4, seed=3,
        show=lambda text: None,
    )  # fmt: skip
    assert report.num_interactive == len(arrival_times(0.2, 50, 3))
    # Slots are plenty and steps cost the same, so bulk loses nothing, and a request waits for a step at most.
    assert report.bulk_mixed == pytest.approx(report.bulk_alone)
    assert 1.0 <= report.ttft_p50_alone <= report.ttft_p95_mixed <= 2.0


def test_requests_and_arrivals_are_the_same_for_the_same_seed() -> None:
    assert arrival_times(1.0, 30, 5) == arrival_times(1.0, 30, 5) != arrival_times(1.0, 30, 6)
    assert interactive_requests("tiny", 12, 5) == interactive_requests("tiny", 12, 5)
    bulk = bulk_requests("tiny", 5)
    assert len({next(bulk).id for _ in range(40)}) == 40


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (75, 3.0), (95, 4.0), (100, 4.0), (0, 1.0)])
def test_percentiles_are_values_that_were_measured(percent: float, value: float) -> None:
    assert percentile([3.0, 1.0, 4.0, 2.0], percent) == value
