"""The time, workers and cost of a bulk job, by a survey of its input and the results of a sample of it. Pure.

A run is taken to last `a + rows / pace`: `a` is what every run loses at its start and end, whatever its
length. The sample is so short that its mean pace has much of `a` in it. So the pace is read off the middle of
the sample, and `a` is what is left of the sample's time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from nightshift.fleet.costs import HOUR_S, NO_PRICES, Prices, WorkerTime

MIDDLE: Final = (0.1, 0.8)  # shares of the sample's rows between which its pace is read
TOO_LONG: Final = "context_length_exceeded"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """An input as it was looked at: some of its rows were read, or all."""

    objects: int
    size_bytes: int
    is_whole: bool  # False: there are more objects, which were not counted
    rows: int
    rows_are_exact: bool
    rows_read: int
    is_spread: bool  # False: an object could be read from its beginning only, and not to its end
    rows_unusable: int = 0  # rows read from which no request can be made
    duplicates: int = 0  # rows with the request of another row, that one not counted
    duplicates_are_exact: bool = False
    rows_reused: int | None = None  # rows with a result of an earlier job; None: none is reused
    model: str | None = None

    def rows_to_run(self, *, shares_answers: bool) -> float:
        """Rows that an engine would be given. `shares_answers`: equal requests are run once."""
        usable = self.rows * (1 - self.rows_unusable / self.rows_read) if self.rows_read else float(self.rows)
        saved = (self.rows_reused or 0) + self.duplicates if shares_answers else 0
        return max(0.0, usable - saved)


@dataclass(frozen=True)
class Done:
    """The number of the sample's rows that had ended at a time."""

    at_s: float  # since the sample began
    rows: int


@dataclass(frozen=True, kw_only=True)
class SampleResults:
    """A sample of the rows, as far as workers ran it."""

    prompt_tokens: Sequence[int] = ()  # of each row that succeeded and was run
    completion_tokens: Sequence[int] = ()
    failures: Mapping[str, int] = field(default_factory=dict)  # rows by their error's code
    reused: int = 0  # rows that got the answer of another one
    done: Sequence[Done] = ()  # ascending; all rows that ended
    worker_s: float = 0.0  # time of workers until the last of `done`
    ended_s: float | None = None  # since it began; None: it was stopped, or runs
    stopped_s: float | None = None  # after which no row began

    @property
    def run(self) -> int:
        """Rows that ended and were run."""
        return len(self.prompt_tokens) + sum(self.failures.values())

    @property
    def workers(self) -> float:
        """The number of workers that it had on average: shared ones count as their share."""
        last_s = self.done[-1].at_s if self.done else 0.0
        return self.worker_s / last_s if last_s > 0 and self.worker_s > 0 else 1.0


@dataclass(frozen=True)
class Pace:
    """The pace of one worker that has nothing else to do, and the time that a run loses."""

    rows_per_s: float
    lost_s: float = 0.0

    def seconds(self, rows: float, ahead_s: float = 0.0, workers: int = 1) -> float:
        """The time to the end of so many rows, behind other work of `ahead_s` for one worker."""
        return self.lost_s + (ahead_s + rows / self.rows_per_s) / workers

    def workers_for(self, rows: float, ahead_s: float, within_s: float) -> int | None:
        """The fewest workers that are done in time. None: no number of them is."""
        left_s = within_s - self.lost_s
        return max(1, ceil((ahead_s + rows / self.rows_per_s) / left_s)) if left_s > 0 else None


def pace_of(sample: SampleResults) -> Pace | None:
    """The pace in the middle of the sample, while it had all that a worker runs at once: after the first rows
    that ended, and before none was left to begin. Of all of it where that is too short. None: nothing ended.
    """
    if not sample.done:
        return None
    until_s, share = (inf, MIDDLE[1]) if sample.stopped_s is None else (sample.stopped_s, 1.0)
    begun = [done for done in sample.done if done.at_s <= until_s] or sample.done[:1]
    low, high = MIDDLE[0] * begun[-1].rows, share * begun[-1].rows
    middle = [done for done in begun if low <= done.rows <= high] or begun
    whole = sample.done[-1]
    for first, last in ((middle[0], middle[-1]), (sample.done[0], whole), (Done(0.0, 0), whole)):
        if last.at_s > first.at_s and last.rows > first.rows:
            break
    else:
        return None
    rows_per_s = (last.rows - first.rows) / (last.at_s - first.at_s)
    at_end = last if sample.ended_s is None else Done(sample.ended_s, whole.rows)
    lost_s = max(0.0, at_end.at_s - at_end.rows / rows_per_s)
    run = sample.run / (sample.run + sample.reused)
    return Pace(rows_per_s * run / sample.workers, lost_s) if run else None


@dataclass(frozen=True)
class Tokens:
    """Tokens of all rows together, and of the sample's rows. `histogram`: rows by the least power of two,
    from 16, that their tokens do not exceed.
    """

    total: int
    mean: float
    p50: int
    p95: int
    most: int
    histogram: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    rows_to_run: int
    rows_too_long: int | None  # None, like all that follows: not known
    rows_failing: int | None  # too long ones included
    prompt_tokens: Tokens | None
    completion_tokens: Tokens | None
    rows_per_worker_s: float | None
    waits_s: float | None  # until the rows of other jobs that go first have ended
    eta_s: float | None  # until the job has ended; None also where no worker is ready
    workers_wanted: int | None  # to end within the window
    worker_hours: float | None
    cost: float | None
    spot_cost: float | None
    saving: float | None


def estimate(
    survey: Survey,
    sample: SampleResults,
    *,
    workers: int,
    within_s: float,
    prices: Prices = NO_PRICES,
    recorded_rows_per_s: float | None = None,
    rows_ahead: int = 0,
) -> Estimate:
    """Estimates a run on `workers`. `recorded_rows_per_s`: the pace of a worker of the model as it was last
    measured, for want of a sample, and for the `rows_ahead` of other jobs.
    """
    rows = survey.rows_to_run(shares_answers=sample.reused > 0)
    pace = pace_of(sample) or (Pace(recorded_rows_per_s) if recorded_rows_per_s else None)
    share = {code: count / sample.run for code, count in sample.failures.items()} if sample.run else {}
    worker_s = cost = spot_cost = None
    ahead_s = 0.0
    if pace is not None:
        worker_s, ahead_s = pace.seconds(rows), rows_ahead / (recorded_rows_per_s or pace.rows_per_s)
        cost, spot_cost = (prices.cost(time) for time in (WorkerTime(0.0, worker_s), WorkerTime(worker_s)))
    return Estimate(
        rows_to_run=round(rows),
        rows_too_long=round(rows * share.get(TOO_LONG, 0.0)) if sample.run else None,
        rows_failing=round(rows * sum(share.values())) if sample.run else None,
        prompt_tokens=_tokens(sample.prompt_tokens, sample, rows),
        completion_tokens=_tokens(sample.completion_tokens, sample, rows),
        rows_per_worker_s=None if pace is None else pace.rows_per_s,
        waits_s=None if pace is None or not workers else ahead_s / workers,
        eta_s=None if pace is None or not workers else pace.seconds(rows, ahead_s, workers),
        workers_wanted=None if pace is None else pace.workers_for(rows, ahead_s, within_s),
        worker_hours=None if worker_s is None else worker_s / HOUR_S,
        cost=cost,
        spot_cost=spot_cost,
        saving=None if cost is None or spot_cost is None else cost - spot_cost,
    )


def _tokens(counts: Sequence[int], sample: SampleResults, rows: float) -> Tokens | None:
    """Tokens of `rows` rows, of which as many succeed as in the sample."""
    if not counts:
        return None
    ordered = sorted(counts)
    return Tokens(
        total=round(rows * sum(counts) / sample.run),
        mean=sum(counts) / len(counts),
        p50=ordered[len(ordered) // 2],
        p95=ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
        most=ordered[-1],
        histogram=dict(sorted(Counter(max(16, 1 << (tokens - 1).bit_length()) for tokens in counts).items())),
    )


def duplicates_among(counts: Mapping[int, int], rows: int, rows_read: int) -> int:
    """Rows of an input that equal an earlier one, where of `rows_read` of its rows `counts` has how many
    different ones were seen so often: {1: 90, 2: 5} are 90 rows seen once and 5 seen twice.

    Exact where all rows were read. Else what was seen three times or more is taken to be as frequent
    everywhere; and a pair is seen with the square of the share that was read, so there are more pairs by it.
    """
    if not rows_read:
        return 0
    scale = max(1.0, rows / rows_read)
    frequent = sum(count * (times * scale - 1) for times, count in counts.items() if times > 2)
    rare = counts.get(1, 0) + 2 * counts.get(2, 0)
    pairs = min(counts.get(2, 0) * scale**2, rare * scale - (counts.get(1, 0) + counts.get(2, 0)))
    return min(max(0, rows - 1), round(frequent + pairs))
