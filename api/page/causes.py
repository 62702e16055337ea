"""Why a worker's process ended, in words."""

from collections.abc import Mapping
from typing import Final

from nightshift.fleet.workers import ExitCause

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
