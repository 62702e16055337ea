"""An estimate follows from what an input has and what a sample of it took."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.bulk.sampling.sampler import ROWS_MIN, ROWS_SHARE
from nightshift.fleet.costs import Prices
from nightshift.jobs.capacity.estimates import (
    Done,
    Pace,
    SampleResults,
    Survey,
    duplicates_among,
    estimate,
    pace_of,
)

HOUR_S = 3600


def a_survey(rows: int = 10_000, **fields: object) -> Survey:
    known = Survey(
        objects=1, size_bytes=1, is_whole=True, rows=rows, rows_are_exact=True, rows_read=rows, is_spread=True
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def a_sample(
    rows: int = 400, pace: float = 10.0, lost_s: float = 2.0, workers: int = 1, **fields: object
) -> SampleResults:
    """A sample whose first rows end `lost_s` late, and whose others come at the pace of so many workers."""
    done = [Done(lost_s + rows * step / 20 / (pace * workers), rows * step // 20) for step in range(1, 21)]
    known = SampleResults(
        prompt_tokens=[10] * rows,
        completion_tokens=[5] * rows,
        done=done,
        worker_s=done[-1].at_s * workers,
        ended_s=done[-1].at_s,
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def test_what_every_run_loses_is_not_taken_for_its_pace():
    pace = pace_of(a_sample(pace=10, lost_s=30))
    assert pace is not None
    assert (pace.rows_per_s, pace.lost_s) == (pytest.approx(10), pytest.approx(30))


def test_the_pace_is_that_of_one_worker_however_many_ran_the_sample():
    paces = [pace_of(a_sample(workers=workers)) for workers in (1, 3)]
    assert [pace.rows_per_s for pace in paces if pace] == [pytest.approx(10), pytest.approx(10)]


def test_a_stopped_sample_tells_its_pace_until_it_was_stopped():
    sample = a_sample(pace=10, lost_s=0)
    slow_end = [done for done in sample.done if done.rows <= 200] + [Done(80.0, 240)]
    pace = pace_of(replace(sample, done=slow_end, worker_s=80.0, ended_s=None, stopped_s=20.0))
    assert pace is not None
    assert pace.rows_per_s == pytest.approx(10)


def test_rows_that_end_in_waves_are_counted_by_whole_waves():
    """Answers of one length end together: so many rows every ten seconds."""
    waves = [Done(10.0 * wave, 128 * wave) for wave in range(1, 6)]
    pace = pace_of(a_sample(done=waves, worker_s=50.0, ended_s=50.0))
    assert pace is not None
    assert pace.rows_per_s == pytest.approx(12.8)


def test_a_sample_of_which_nothing_ended_leaves_the_pace_that_was_recorded():
    nothing = SampleResults()
    known = estimate(a_survey(1000), nothing, workers=2, within_s=60, recorded_rows_per_s=5)
    assert (known.eta_s, known.prompt_tokens, known.rows_failing) == (100, None, None)
    assert estimate(a_survey(1000), nothing, workers=2, within_s=60).eta_s is None


def test_rows_that_need_no_run_are_taken_off_only_where_answers_are_shared():
    survey = a_survey(1000, duplicates=100, rows_reused=300)
    rows = [
        estimate(survey, a_sample(reused=reused), workers=1, within_s=60).rows_to_run for reused in (0, 1)
    ]
    assert rows == [1000, 600]


def test_rows_without_a_request_are_taken_off_by_their_share():
    survey = a_survey(1000, rows_read=100, rows_unusable=10)
    assert estimate(survey, a_sample(), workers=1, within_s=60).rows_to_run == 900


def test_rows_fail_as_often_as_in_the_sample():
    sample = a_sample(
        rows=100, prompt_tokens=[10] * 90, failures={"context_length_exceeded": 6, "invalid_value": 4}
    )
    known = estimate(a_survey(1000), sample, workers=1, within_s=60)
    assert (known.rows_too_long, known.rows_failing) == (60, 100)
    assert known.prompt_tokens is not None
    assert known.prompt_tokens.total == 9000


def test_a_sample_that_fails_whole_has_no_tokens():
    sample = a_sample(rows=10, prompt_tokens=(), completion_tokens=(), failures={"invalid_value": 10})
    known = estimate(a_survey(1000), sample, workers=1, within_s=60)
    assert (known.rows_failing, known.prompt_tokens) == (1000, None)


def test_tokens_are_counted_by_the_most_that_rows_have():
    sample = a_sample(rows=4, prompt_tokens=[1, 16, 17, 100_000])
    known = estimate(a_survey(4), sample, workers=1, within_s=60)
    assert known.prompt_tokens is not None
    assert known.prompt_tokens.histogram == {16: 2, 32: 1, 131_072: 1}


def test_spot_machines_save_the_difference():
    prices = Prices(on_demand=2.0, spot=0.5)
    sample = a_sample(pace=10, lost_s=0)
    known = estimate(a_survey(10 * HOUR_S), sample, workers=0, within_s=60, prices=prices)
    assert (known.worker_hours, known.cost, known.saving) == (
        pytest.approx(1),
        pytest.approx(2),
        pytest.approx(1.5),
    )
    assert known.eta_s is None


def test_rows_of_other_jobs_that_go_first_are_waited_for_at_the_pace_that_was_recorded():
    ahead: dict[str, float] = {"recorded_rows_per_s": 20, "rows_ahead": 4000}
    known = estimate(a_survey(1000), a_sample(lost_s=0), workers=2, within_s=100, **ahead)  # type: ignore[arg-type]
    assert known.eta_s is not None
    assert (known.waits_s, known.eta_s) == (pytest.approx(100), pytest.approx(150))
    assert known.workers_wanted == 3
    assert known.worker_hours == pytest.approx(100 / HOUR_S)


positive = st.floats(0.01, 1e4)


@given(positive, st.floats(0, 1e4), st.floats(0, 1e7), st.floats(0, 1e6), st.floats(1, 1e6))
def test_the_workers_wanted_end_in_time_and_one_less_does_not(per_s, lost_s, rows, ahead_s, within_s):
    pace = Pace(per_s, lost_s)
    wanted = pace.workers_for(rows, ahead_s, within_s)
    if wanted is None:
        assert lost_s >= within_s
    else:
        assert pace.seconds(rows, ahead_s, wanted) <= within_s * (1 + 1e-9)
        assert wanted == 1 or pace.seconds(rows, ahead_s, wanted - 1) > within_s * (1 - 1e-9)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 500)), max_size=30), st.integers(1, 10**7))
def test_any_timeline_has_a_pace_above_zero_or_none(steps, rows):
    at_s, ended, done = 0.0, 0, []
    for took_s, count in steps:
        at_s, ended = at_s + took_s, ended + count
        done.append(Done(at_s, ended))
    sample = a_sample(done=done, worker_s=at_s, ended_s=at_s)
    known = estimate(a_survey(rows), sample, workers=3, within_s=60)
    assert (known.rows_per_worker_s is None) == (at_s == 0)
    assert known.rows_per_worker_s is None or known.rows_per_worker_s > 0
    assert known.eta_s is None or known.eta_s > 0


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(0, 59))
def test_duplicates_are_exact_where_all_rows_were_read_and_never_all_rows(values, unread):
    counts = {value: values.count(value) for value in values}
    times = {number: list(counts.values()).count(number) for number in counts.values()}
    assert duplicates_among(times, len(values), len(values)) == len(values) - len(counts)
    rows = len(values) + unread
    assert 0 <= duplicates_among(times, rows, len(values)) < rows


@pytest.mark.parametrize("times", [2, 10])
def test_duplicates_seen_in_a_tenth_of_the_rows_are_extrapolated(times):
    """10,000 rows, of which a fifth is one row many times, and a fifth are each there twice."""
    rows = [0] * 2000 + [*range(1, 1001)] * 2 + [*range(2000, 8000)]
    seen = Random(times).sample(rows, 1000)
    counts = {value: seen.count(value) for value in set(seen)}
    frequencies = list(counts.values())
    known = duplicates_among({n: frequencies.count(n) for n in set(frequencies)}, len(rows), len(seen))
    assert 2000 < known < 5000  # of 2,999


def simulated(
    lengths: Sequence[int], step_s: float, slots: int = 128, stops_s: float = math.inf
) -> SampleResults:
    """A worker that steps up to `slots` rows together: a step takes longer the more rows it has, and the more
    it begins. Results are listed every quarter of a second or later. No row begins after `stops_s`.
    """
    waiting, running = list(reversed(lengths)), list[int]()  # of these, the steps at which they end
    at_s, listed_s, step, ran, done = 0.3, 0.0, 0, list[int](), list[Done]()
    while running or (waiting and at_s < stops_s):
        free = slots - len(running) if at_s < stops_s else 0
        begun = [waiting.pop() for _ in range(min(free, len(waiting)))]
        for length in begun:
            heappush(running, step + length)
        ran += begun
        step += 1
        at_s += step_s * (1 + len(running) / 64 + len(begun) / 8)
        while running and running[0] <= step:
            heappop(running)
        ended = len(ran) - len(running)
        if at_s - listed_s >= 0.25 and ended > (done[-1].rows if done else 0):
            listed_s = at_s
            done.append(Done(at_s, ended))
    done.append(Done(at_s, len(ran)))
    return SampleResults(
        prompt_tokens=[1] * len(ran),
        completion_tokens=ran,
        done=done,
        worker_s=at_s,
        ended_s=None if waiting else at_s + 0.4,
        stopped_s=stops_s if waiting else None,
    )


def eta_over_run(rows: Sequence[int], step_s: float, slots: int, draw: Random) -> float:
    """The estimate by a sample of the size that is taken, over the time of the run."""
    sample = draw.sample(rows, min(len(rows), max(ROWS_MIN, len(rows) // ROWS_SHARE)))
    results = simulated(sample, step_s, slots, stops_s=60)
    known = estimate(a_survey(len(rows)), results, workers=1, within_s=60)
    run = simulated(rows, step_s, slots)
    assert known.eta_s is not None
    assert run.ended_s is not None
    return known.eta_s / run.ended_s


LENGTHS: dict[str, Callable[[Random], int]] = {
    "one step": lambda draw: 1,
    "even": lambda draw: 128,
    "uneven": lambda draw: draw.randint(16, 240),
    "lognormal": lambda draw: 1 + min(2000, int(draw.lognormvariate(4, 1))),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("step_s", [0.002, 0.02])
def test_an_estimate_of_a_sorted_input_is_within_a_tenth_of_its_run(name, step_s):
    draw = Random(1)
    rows = sorted(LENGTHS[name](draw) for _ in range(8000))
    assert eta_over_run(rows, step_s, 128, draw) == pytest.approx(1, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1024, 8000),
    slots=st.integers(8, 256),
    least=st.integers(1, 100),
    further=st.integers(0, 300),
    step_s=st.sampled_from([0.01, 0.03]),
    order=st.sampled_from([sorted, list, lambda rows: sorted(rows, reverse=True)]),
)
def test_an_estimate_is_within_an_eighth_of_its_run_whatever_runs_at_once(
    count, slots, least, further, step_s, order
):
    draw = Random(count)
    rows = order([draw.randint(least, least + further) for _ in range(count)])
    assert eta_over_run(rows, step_s, slots, draw) == pytest.approx(1, rel=1 / 8)
