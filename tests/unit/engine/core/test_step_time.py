"""Step times are learned, and keep bulk out of the way of interactive requests. All times are modelled."""

import random
from dataclasses import dataclass, field
from statistics import quantiles

import pytest

from nightshift_engine.core.batcher import Batcher
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.request import PriorityClass, Request
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.steps import StepShape, StepTimeModel, step_shape
from tests.unit.engine.core.test_batcher import FakeModel, ids


def seconds_of(shape: StepShape) -> float:
    """A machine: 4 ms per step, 20 µs per token, 20 ns per token of KV read."""
    return 0.004 + 20e-6 * shape.tokens + 20e-9 * shape.kv_tokens


def some_shape(rng: random.Random) -> StepShape:
    rows, chunk = rng.randint(1, 64), rng.choice([0, 0, 0, 256, 900])
    return StepShape(rows + chunk, rows * rng.randint(100, 900) + chunk, rows + bool(chunk))


@pytest.mark.parametrize("seed", range(5))
def test_times_are_learned_despite_noise_and_outliers(seed: int) -> None:
    rng, model = random.Random(seed), StepTimeModel()
    for _ in range(300):
        shape = some_shape(rng)
        noise = 20.0 if rng.random() < 0.02 else rng.uniform(0.95, 1.05)
        model.observe(shape, seconds_of(shape) * noise)
    for _ in range(20):
        shape = some_shape(rng)
        assert model.predict_s(shape) == pytest.approx(seconds_of(shape), rel=0.15), f"{seed=}"
    assert min(model.coefficients) >= 0


def test_a_machine_that_slows_down_is_followed() -> None:
    rng, model = random.Random(1), StepTimeModel()
    for factor in (1, 3):
        for _ in range(600):
            shape = some_shape(rng)
            model.observe(shape, factor * seconds_of(shape))
    shape = some_shape(rng)
    assert model.predict_s(shape) == pytest.approx(3 * seconds_of(shape), rel=0.15)


def test_nothing_is_predicted_from_a_few_steps() -> None:
    model = StepTimeModel()
    model.observe(StepShape(10, 100, 1), 5.0)

    assert model.predict_s(StepShape(10, 100, 1)) == 0
    assert model.tokens_within(StepShape(), 0, 0.01) is None


def test_a_row_whose_cached_prefix_takes_up_the_time_left_runs_in_the_next_step() -> None:
    model = FakeModel(blocks=200, budget=64, step_budget_ms=10.0)
    rng = random.Random(5)
    for _ in range(100):
        shape = some_shape(rng)
        model.batcher.observe(shape, 0.001 + 1e-4 * shape.tokens + 1e-4 * shape.kv_tokens)
    done = model.add("done", prompt=100, new=1)
    model.run()
    model.add("online", prompt=4, new=100, priority="interactive")
    model.step()
    model.add("short", prompt=4, new=100)
    row = model.add("row", [*done.token_ids[:100], *range(10)], new=10)
    steps = [ids(model.step()) for _ in range(5)]

    assert steps[0] == ["online", "short"]
    assert row.num_cached_tokens == 100
    assert "row" in steps[1] + steps[2]


def test_bulk_fills_its_slots_when_the_last_interactive_request_has_ended_on_a_slow_machine() -> None:
    """Decoding alone takes longer than the budget: 60 ms per step, and 4 ms per token."""
    model = FakeModel(blocks=800, slots=64, budget=512, step_budget_ms=50.0)
    for number in range(600):
        model.add(f"bulk-{number}", prompt=8, new=10, priority="background")
    model.add("online", prompt=8, new=20, priority="interactive")
    num_running, seconds_after = [], 0.0
    while seconds_after < 6.0:
        chunks = model.step()
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        seconds = 0.06 + 4e-3 * num_tokens
        model.batcher.observe(StepShape(num_tokens, 0, len(chunks)), seconds)
        if "online" in model.finished:
            seconds_after += seconds
            num_running.append(len(chunks))

    assert max(num_running) == 64, num_running


@dataclass
class Machine:
    """Runs a batcher in modelled time: bulk to saturation, interactive requests at given times."""

    budget_ms: float | None
    with_bulk: bool = True
    now_s: float = 0.0
    bulk_tokens: int = 0
    first_token_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batcher = Batcher(
            BlockPool(4000, 32), max_num_seqs=64, max_num_batched_tokens=1024, step_budget_ms=self.budget_ms
        )
        self.arrivals = 0
        self.rng = random.Random(3)

    def add(self, id: str, prompt: int, new: int, priority: PriorityClass) -> None:
        tokens = [self.rng.randrange(50_000) for _ in range(prompt)]
        group = "job" if priority == "background" else None
        request = Request(id, tokens, priority=priority, group=group)
        self.batcher.add(Sequence(request, arrival=self.arrivals, num_tokens_max=prompt + new))
        self.arrivals += 1

    def run(self, arrivals_s: list[float], seconds: float) -> None:
        due = sorted(arrivals_s)
        while self.now_s < seconds:
            while due and due[0] <= self.now_s:
                self.add(f"online-{due.pop(0)}", 1000, 24, "interactive")
            while self.with_bulk and len(self.batcher.waiting) < 20:
                self.add(f"bulk-{self.arrivals}", 600, 200, "background")
            chunks = self.batcher.plan()
            if not chunks:
                self.now_s = due[0] if due else seconds
                continue
            starts = [chunk.sequence.num_computed_tokens for chunk in chunks]
            shape, sampled = step_shape(chunks), [chunk.sequence for chunk in chunks if chunk.is_last]
            self.now_s += seconds_of(shape)
            self.batcher.observe(shape, seconds_of(shape))
            for chunk, start in zip(chunks, starts, strict=True):
                self.batcher.advance(chunk)
                self.batcher.publish(chunk, start)
            for sequence in sampled:
                self.sample(sequence)

    def sample(self, sequence: Sequence) -> None:
        sequence.append(1)
        self.bulk_tokens += sequence.group is not None
        if sequence.group is None:
            self.first_token_s.setdefault(sequence.id, self.now_s - float(sequence.id.split("-")[1]))
        if sequence.num_tokens >= sequence.num_tokens_max:
            self.batcher.remove(sequence)

    @property
    def ttft_p95_s(self) -> float:
        return quantiles(self.first_token_s.values(), n=20)[-1]


def test_interactive_requests_wait_little_longer_beside_bulk_which_keeps_most_of_its_throughput() -> None:
    """One interactive request per second. Aims: at most 1.5 times the time alone, 90 % of bulk."""
    rng = random.Random(11)
    arrivals_s = [second + rng.random() for second in range(2, 22)]
    alone, beside = Machine(10.0, with_bulk=False), Machine(10.0)
    bulk_only, unbounded = Machine(10.0), Machine(None)
    alone.run(arrivals_s, 22)
    beside.run(arrivals_s, 22)
    unbounded.run(arrivals_s, 22)
    bulk_only.run([], 22)
    figures = (
        f"p95 alone {alone.ttft_p95_s:.4f} beside {beside.ttft_p95_s:.4f} "
        f"unbounded {unbounded.ttft_p95_s:.4f} bulk {beside.bulk_tokens / bulk_only.bulk_tokens:.3f}"
    )
    print(figures)

    assert len(beside.first_token_s) == len(arrivals_s)
    assert beside.ttft_p95_s <= 1.5 * alone.ttft_p95_s, figures
    assert beside.bulk_tokens >= 0.9 * bulk_only.bulk_tokens, figures
    assert beside.ttft_p95_s < 0.9 * unbounded.ttft_p95_s, figures
