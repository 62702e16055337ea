"""Numbers for Prometheus: how the duties' passes went, and whether this process leads.

What is queued, running and owed is in the database, from which the API reports it.
"""

from collections.abc import Callable
from typing import Final

from nightshift.outbound.webhooks import DeliveryState
from nightshift.process.metrics import scheduler as declared
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.processes import register_process
from nightshift.schedules.runs import OUTCOMES

# From a pass that finds nothing to the validation of a large file.
BUCKETS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 300, 1800)
# From a pass that was due at once to a night that was made up for.
RUN_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2, 5, 15, 60, 600, 3600, 86_400)
# From a receiver in the same network to the longest time an attempt may take.
WEBHOOK_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30)


class DutyMetrics:
    """Observes passes. Thread-safe."""

    def __init__(self, is_leading: Callable[[], bool]) -> None:
        self.registry = new_registry()
        self._seconds = declared.DUTY_SECONDS.counted(self.registry, BUCKETS_S)
        self._failures = declared.DUTY_FAILURES.counted(self.registry)
        self._succeeded_at = declared.DUTY_SUCCEEDED_AT.counted(self.registry)
        declared.LEADING.counted(self.registry).set_function(lambda: float(is_leading()))
        self._webhook_attempts = declared.WEBHOOK_ATTEMPTS.counted(self.registry)
        for state in DeliveryState:
            self._webhook_attempts.labels(state)  # 0 from the start
        self._webhook_seconds = declared.WEBHOOK_SECONDS.counted(self.registry, WEBHOOK_BUCKETS_S)
        self._run_delay = declared.RUN_DELAY.counted(self.registry, RUN_BUCKETS_S)
        self._run_outcomes = declared.RUN_OUTCOMES.counted(self.registry)
        for outcome in OUTCOMES:
            self._run_outcomes.labels(outcome)
        register_process(self.registry)

    def observe(self, duty: str, seconds: float, succeeded: bool) -> None:
        """A pass has ended."""
        self._seconds.labels(duty).observe(seconds)
        # 0 from the first pass on: alerts on growth need a first value.
        failures = self._failures.labels(duty)
        if succeeded:
            self._succeeded_at.labels(duty).set_to_current_time()
        else:
            failures.inc()

    def webhook_attempted(self, state: str, seconds: float) -> None:
        """`state`: the delivery's after it."""
        self._webhook_attempts.labels(state).inc()
        self._webhook_seconds.observe(seconds)

    def run_started(self, outcome: str, delay_s: float | None) -> None:
        """A schedule's run was submitted, skipped, missed or refused. `delay_s`: if it was submitted."""
        self._run_outcomes.labels(outcome).inc()
        if delay_s is not None:
            self._run_delay.observe(delay_s)
