"""A worker as lists and its own view show it: whether it is heard of, what it does, why it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from api.operation.health import WORKER_SILENCE_MAX
from api.page.views.job_rows import Tone
from nightshift.fleet import figures
from nightshift.fleet.workers import ExitCause, NoticeKind, Worker, WorkerState

IN_WORDS: Final[Mapping[ExitCause, str]] = {
    ExitCause.DRAINED: "drained",
    ExitCause.DRAIN_TOO_SLOW: "did not drain in time",
    ExitCause.QUEUE_CONNECTION_LOST: "lost its connection to the queue",
    ExitCause.ENGINE_DIED: "an error ended its engine",
    ExitCause.STUCK_STEP: "a step did not end",
    ExitCause.STUCK_LOAD: "loading a model did not end",
    ExitCause.OUT_OF_MEMORY: "out of memory",
    ExitCause.ABORTED: "aborted (SIGABRT)",
    ExitCause.SIGNAL: "crashed (by a signal)",
    ExitCause.EXITED: "exited with an error",
    ExitCause.UNREQUESTED_DRAIN: "left unasked",
    ExitCause.KILLED: "killed from outside",
    ExitCause.LEASE_EXPIRED: "stopped renewing its leases",
    ExitCause.DATABASE_UNAVAILABLE: "was not heard of while the database was away",
}
_TONES = {
    WorkerState.STARTING: Tone.ACTIVE,
    WorkerState.READY: Tone.GOOD,
    WorkerState.DRAINING: Tone.WARNING,
    WorkerState.STOPPED: Tone.OVER,
}
_ASKED_TO_END = (None, ExitCause.DRAINED)


@dataclass(frozen=True)
class WorkerRow:
    worker: Worker
    now: datetime

    @property
    def state(self) -> str:
        """The worker's own state, or one that is known beside it."""
        if self.worker.state is WorkerState.STOPPED:
            return "ended" if self.worker.ended_at else "stopped"
        if self.is_silent:
            return "not heard of"
        if self.leaves_soon and self.worker.state is WorkerState.READY:
            return "machine goes"
        is_asked = self.worker.drain_requested_at is not None and self.worker.state is WorkerState.READY
        return "asked to drain" if is_asked else self.worker.state.value

    @property
    def tone(self) -> Tone:
        if self.worker.state is WorkerState.STOPPED:
            return Tone.OVER if self.worker.ended_cause in _ASKED_TO_END else Tone.BAD
        if self.is_silent:
            return Tone.BAD
        is_warned = self.worker.drain_requested_at or self.worker.notice
        return Tone.WARNING if is_warned else _TONES[self.worker.state]

    @property
    def is_silent(self) -> bool:
        """Whether it may be gone: no heartbeat for some time."""
        return self.now - self.worker.heartbeat_at > WORKER_SILENCE_MAX

    @property
    def leaves_soon(self) -> bool:
        """Whether its machine is about to be taken away, for certain."""
        notice = self.worker.notice
        return notice is not None and notice.kind is NoticeKind.INTERRUPTION

    @property
    def may_drain(self) -> bool:
        return self.worker.state is not WorkerState.STOPPED and self.worker.drain_requested_at is None

    @property
    def cause(self) -> str | None:
        """The cause of the process's end, if it was seen to end."""
        cause = self.worker.ended_cause
        return None if cause is None else IN_WORDS[cause]

    @property
    def cold(self) -> Sequence[str]:
        """Models that the worker can serve and has not loaded."""
        return [id for id in self.worker.models if id not in self.worker.warm]

    @property
    def busy(self) -> float | None:
        """The share of the last seconds in which its busiest model was in a step."""
        report = self.report
        known = [] if report is None else [model.busy_fraction for model in report.models.values()]
        return max((busy for busy in known if busy is not None), default=None)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second that the worker generates."""
        report = self.report
        return None if report is None else figures.total([report], "generation_tokens_per_s")

    @property
    def rows_per_s(self) -> float | None:
        report = self.report
        return None if report is None else figures.total([report], "rows_per_s")

    @property
    def report(self) -> figures.WorkerFigures | None:
        """The worker's last report, while that says something of now."""
        is_present = self.worker.state is not WorkerState.STOPPED and not self.is_silent
        return self.worker.figures if is_present else None
