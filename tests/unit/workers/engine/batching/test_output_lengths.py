"""Output lengths are learned per job, and admission by them preempts less and loses nothing."""

from __future__ import annotations

import random

import pytest

from tests.unit.workers.engine.batching.test_batcher import FakeModel, Shortsighted
from workers.engine.batching.forecast import Forecast, Future, Futures
from workers.engine.batching.output_lengths import (
    ANSWERS_REMEMBERED,
    DEFAULT_OUTPUT_TOKENS,
    GROUPS_REMEMBERED,
    LengthHistogram,
    OutputLengths,
)
from workers.engine.batching.sequence import Sequence
from workers.engine.request import Request


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_right_to_within_a_bucket(seed: int) -> None:
    rng, histogram = random.Random(seed), LengthHistogram()
    lengths = sorted(int(rng.lognormvariate(5, 1)) for _ in range(ANSWERS_REMEMBERED // 2))
    for length in lengths:
        histogram.add(length)
    for share in (0.25, 0.5, 0.75, 0.95):
        exact = lengths[int(share * len(lengths)) - 1]
        estimate = histogram.quantile(share)
        assert estimate is not None
        assert exact <= estimate <= exact * 1.25 + 1, f"{seed=} {share=}"


def test_the_answers_of_a_job_say_what_its_next_one_needs() -> None:
    lengths = OutputLengths()
    assert lengths.expect("short", 0) == DEFAULT_OUTPUT_TOKENS
    for _ in range(20):
        lengths.add("short", 5)
        lengths.add("long", 700)

    assert lengths.expect("short", 0) == 5
    assert 700 <= lengths.expect("long", 0) < 900
    assert 5 <= lengths.expect("new", 0) < 900, "of a new job, what all together say"


def test_an_answer_longer_than_most_is_expected_to_go_on() -> None:
    lengths = OutputLengths()
    for length in [10] * 90 + [1000] * 10:
        lengths.add("job", length)

    assert lengths.expect("job", 0) == 11
    assert lengths.expect("job", 50) >= 1000
    assert lengths.expect("job", 5000) > 5000


def test_old_answers_count_less_and_old_jobs_are_forgotten() -> None:
    lengths = OutputLengths()
    for _ in range(4 * ANSWERS_REMEMBERED):
        lengths.add("job", 10)
    for _ in range(2 * ANSWERS_REMEMBERED):
        lengths.add("job", 500)
    assert lengths.expect("job", 0) >= 500
    for number in range(GROUPS_REMEMBERED):
        lengths.add(f"job-{number}", 3)
    assert len(lengths._by_group) == GROUPS_REMEMBERED


def test_the_peak_lies_where_a_sequence_ends_not_at_the_sum_of_all_ends() -> None:
    """Room for 8 tokens each, all of it in use; the first ends when the second has grown by two blocks."""
    short, long = Future(8, 8, 0), Future(16, 8, 0)

    assert Futures.of([long]).peak_growth_blocks(4) == 5  # 16 tokens, and half a block for rounding
    assert Futures.of([short]).peak_growth_blocks(4) == 3
    assert Futures.of([short, long]).peak_growth_blocks(4) == 5, "not 8: the first gives back what it held"


def peak_moment_by_moment(futures: list[Future], block_size: int) -> int:
    """The definition: whenever one ends, what those alive need more, less what the ended have given back."""
    peak = 0
    for moment in {future.remaining_tokens for future in futures}:
        alive = [future for future in futures if future.remaining_tokens >= moment]
        ended = [future for future in futures if future.remaining_tokens < moment]
        grown = sum(moment - future.slack_tokens for future in alive) + len(alive) * block_size // 2
        peak = max(peak, grown - sum(future.held_tokens for future in ended))
    return -(-peak // block_size)


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_by_columns_is_the_peak_by_its_definition(seed: int) -> None:
    rng, block_size = random.Random(seed), random.Random(seed).randint(1, 8)
    futures = []
    for _ in range(rng.randint(1, 40)):
        num_tokens, cached = rng.randint(1, 60), rng.randint(0, 20)
        capacity = -(-num_tokens // block_size) * block_size
        held = capacity - min(cached, num_tokens)
        futures.append(Future(rng.randint(0, 30), held, capacity - num_tokens))
    columns = Futures.of(futures[:-1]).plus(futures[-1])

    assert columns.peak_growth_blocks(block_size) == peak_moment_by_moment(futures, block_size)


def test_what_is_expected_of_all_running_is_what_is_expected_of_each() -> None:
    lengths = OutputLengths()
    for length in (3, 9, 30, 80) * 4:
        lengths.add("job", length)
    forecast, rng = Forecast(lengths, 4), random.Random(3)
    running: list[Sequence] = []
    for number in range(40):
        tokens, outputs = [1] * rng.randint(1, 30), [1] * rng.choice([0, 0, 1, 5, 40, 200])
        request = Request(str(number), tokens, group="job", output_token_ids=outputs)
        sequence = Sequence(request, arrival=number, num_tokens_max=len(tokens) + 220)
        sequence.num_cached_tokens = rng.randint(0, len(tokens))
        sequence.num_promised = number % 2
        sequence.add_blocks(range(-(-sequence.num_tokens // 4)))
        running.append(sequence)

    each = Futures.of([forecast.of(sequence) for sequence in running])

    assert forecast.of_all(running).peak_growth_blocks(4) == each.peak_growth_blocks(4)
    assert [s.num_expected_tokens > s.num_tokens for s in running] == [True] * 40


def heavy_tailed(lengths: OutputLengths | None, seed: int) -> tuple[FakeModel, int]:
    """Run 400 rows whose answers are short but for a few, in memory for about twenty; the work it took.

    A step costs as much as 16 tokens, and what its tokens cost.
    """
    rng = random.Random(seed)
    model = FakeModel(blocks=240, block_size=4, slots=64, budget=128, lengths=lengths)
    for number in range(400):
        new = min(160, int(rng.lognormvariate(2.7, 1.0)) + 1)
        tokens = [number * 1000 + position for position in range(rng.randint(4, 24))]
        request = Request(str(number), tokens, group="job")
        sequence = Sequence(request, arrival=number, num_tokens_max=len(tokens) + 160)
        model.ends_at[sequence.id] = len(tokens) + new
        model.batcher.add(sequence)
    work = 0
    while model.batcher.has_work:
        work += 16 + sum(chunk.num_tokens for chunk in model.step())
    return model, work


@pytest.mark.parametrize("seed", range(2))
def test_admission_by_expected_length_preempts_less_and_takes_no_longer(seed: int) -> None:
    """Against admitting whatever fits now with a block to spare for each, on answers with a heavy tail."""
    expecting, work = heavy_tailed(None, seed)
    hoping, work_hoping = heavy_tailed(Shortsighted(), seed)
    counts = [
        (model.batcher.num_preemptions, model.batcher.num_tokens_recomputed) for model in (expecting, hoping)
    ]
    figures = f"{seed=} preemptions and tokens recomputed {counts}, work {work} and {work_hoping}"
    print(figures)

    assert len(expecting.finished) == len(hoping.finished) == 400
    assert counts[0][0] < 0.7 * counts[1][0], figures
    assert counts[0][1] < 0.7 * counts[1][1], figures
    assert work <= 1.03 * work_hoping, figures
