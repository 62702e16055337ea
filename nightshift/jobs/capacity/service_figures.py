"""The figures of the whole service, of what its workers report and what waits for them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import ServiceFigures, WorkerFigures, merged_durations, total
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs.capacity.backlog import Backlog, WaitingJob, by_group

PACE_WEIGHT: Final = 0.2  # weight of an interval in the pace, which follows a change within minutes
BUSY_LEAST: Final = 0.2  # share of an interval: a pace measured in less time means little
PACES_MAX: Final = 64  # models whose pace is remembered


def summed(
    at: datetime,
    workers: Sequence[Worker],
    waiting: Iterable[WaitingJob],
    before: ServiceFigures | None = None,
) -> ServiceFigures:
    """`workers`: those that are alive. `before`: the figures recorded last, whose paces are gone on with."""
    reports = [worker.figures for worker in workers if worker.figures is not None]
    backlog = by_group(waiting)
    first_token = merged_durations(reports, "first_token_s")
    engines = sum(len(report.models) for report in reports)
    busy = total(reports, "busy_fraction")

    def by_class(amount: Callable[[Backlog], int]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for group, group_backlog in backlog.items():
            counts[group.priority.value] += amount(group_backlog)
        return {name: count for name, count in counts.items() if count}

    return ServiceFigures(
        at=at,
        workers=sum(worker.state is WorkerState.READY for worker in workers),
        queued=by_class(lambda group_backlog: group_backlog.queued),
        running=by_class(lambda group_backlog: group_backlog.leased),
        rows_left=by_class(lambda group_backlog: group_backlog.rows_left),
        prompt_tokens_per_s=total(reports, "prompt_tokens_per_s"),
        generation_tokens_per_s=total(reports, "generation_tokens_per_s"),
        rows_per_s=total(reports, "rows_per_s"),
        busy_fraction=None if busy is None else busy / engines,
        first_token_p50_s=_quantiles(first_token, 0.5),
        first_token_p95_s=_quantiles(first_token, 0.95),
        rows_per_busy_s=paces(reports, before.rows_per_busy_s if before else {}),
    )


def paces(reports: Iterable[WorkerFigures], before: Mapping[str, float]) -> dict[str, float]:
    """Rows that one busy worker runs in a second, by model: a mean that the last intervals weigh in. What no
    worker has run lately keeps the pace that it had.
    """
    rows: defaultdict[str, float] = defaultdict(float)
    busy: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for id, model in report.models.items():
            rows[id] += model.rows_per_s or 0.0
            busy[id] += model.busy_fraction or 0.0
    measured = {id: rows[id] / busy[id] for id in busy if busy[id] >= BUSY_LEAST and rows[id] > 0}
    newest_first = {id: _weighed(pace, before.get(id)) for id, pace in measured.items()} | {
        id: pace for id, pace in before.items() if id not in measured
    }
    return dict(list(newest_first.items())[:PACES_MAX])


def _weighed(pace: float, before: float | None) -> float:
    return pace if before is None else PACE_WEIGHT * pace + (1 - PACE_WEIGHT) * before


def _quantiles(durations: Mapping[str, Durations], share: float) -> dict[str, float]:
    quantiles = {name: duration.quantile(share) for name, duration in durations.items()}
    return {name: round(seconds, 4) for name, seconds in quantiles.items() if seconds is not None}
