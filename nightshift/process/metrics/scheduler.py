"""Metrics of the scheduler's own process."""

from functools import partial
from typing import Final

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_gauge: Final = partial(GaugeFamily, process=Process.SCHEDULER)
_counter: Final = partial(CounterFamily, process=Process.SCHEDULER)
_histogram: Final = partial(HistogramFamily, process=Process.SCHEDULER)

LEADING: Final = _gauge(
    name="nightshift_scheduler_leading",
    help="1 on the one active scheduler",
    closer="its sum over all schedulers is not 1 for longer than `LEADER_TTL_S`",
)
DUTY_FAILURES: Final = _counter(
    name="nightshift_duty_failures_total",
    help="Passes that raised",
    labels=("duty",),
    closer="the leading scheduler's duty fails again and again",
)
DUTY_SUCCEEDED_AT: Final = _gauge(
    name="nightshift_duty_last_success_timestamp_seconds",
    help="When a pass last ended well",
    labels=("duty",),
    closer="a duty has long not succeeded (one that has nothing to do passes every 30 s only)",
)
DUTY_SECONDS: Final = _histogram(
    name="nightshift_duty_pass_seconds",
    help="Time a pass took",
    labels=("duty",),
)

WEBHOOK_ATTEMPTS: Final = _counter(
    name="nightshift_webhook_attempts_total",
    help="Attempts at webhook deliveries, by what became of them: delivered, pending (tried again), dead",
    labels=("state",),
    closer="`dead` grows: receivers refuse events",
)
WEBHOOK_SECONDS: Final = _histogram(
    name="nightshift_webhook_attempt_seconds",
    help="From an attempt's start to the receiver's answer, or its failure",
    closer="receivers answer slowly",
)

RUN_DELAY: Final = _histogram(
    name="nightshift_schedule_delay_seconds",
    help="From the time at which a schedule's run was to start until its job was submitted",
    closer="its p99 passes 2 s: the scheduler or the database is slow, or was away",
)
RUN_OUTCOMES: Final = _counter(
    name="nightshift_schedule_runs_total",
    help="Runs of schedules, by what became of them at their time: submitted, skipped, missed, refused",
    labels=("outcome",),
    closer="`missed` or `refused` grows: GET /v1/schedules says why",
)

SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "The scheduler": (LEADING, DUTY_FAILURES, DUTY_SUCCEEDED_AT, DUTY_SECONDS),
    "Webhook attempts": (WEBHOOK_ATTEMPTS, WEBHOOK_SECONDS),
    "Schedules": (RUN_DELAY, RUN_OUTCOMES),
}
