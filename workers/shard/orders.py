"""Messages to a shard's thread, and orders with the time that each leaves it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import StopReason
from workers.serving.inference import Progress
from workers.shard.checkpoints import Checkpoint
from workers.shard.config import ShardConfig


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class RowProgress:
    """The engine has made something of a row, or ended it."""

    row: int
    inference_id: str
    progress: Progress


@dataclass(frozen=True)
class RowsRead:
    """Rows came after the runner had taken all that were read, or the input has ended."""


@dataclass(frozen=True)
class TurnCame:
    """Another row with the same request has ended: with this result, or this row is to be run."""

    row: int
    result: RowResult | None


@dataclass(frozen=True)
class Failure:
    """The shard cannot continue: its lease is lost, or no retry can write a checkpoint."""

    error: Exception


@dataclass(frozen=True)
class Drain:
    """The order to hand the shard back, with finished rows and the tokens of unfinished ones."""


Message = RowProgress | RowsRead | TurnCame | Checkpoint | Failure | Drain | StopReason
"""A checkpoint says that the database lists it."""


class Orders:
    """The orders that a shard has. Without one, it runs until every row has a result.

    drain   begin nothing more, hand the shard back within `flush_s`; also of a job that is paused
    stop    begin nothing more; rows in flight may finish within `stop_grace_s`, and those that will not are
            given up at once (`row.hopeless_rows`)
    """

    def __init__(self, config: ShardConfig, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._stop_grace_s = config.stop_grace_s
        self._flush_s = config.flush_s
        self._clock_s = clock_s
        self.is_draining = False
        self._stop_at_s: float | None = None  # then rows in flight are given up
        self._leave_by_s = float("inf")  # then unwritten checkpoints are given up

    def drain(self) -> None:
        """The first call counts; every heartbeat repeats that a job is paused."""
        self.is_draining = True
        self.leave()

    def stop(self) -> None:
        """The first call counts; every heartbeat repeats it."""
        if self._stop_at_s is None:
            self._stop_at_s = self._clock_s() + self._stop_grace_s
            self._leave_by_s = min(self._leave_by_s, self._stop_at_s + self._flush_s)

    def leave(self) -> None:
        """Finished rows may still be written."""
        self._leave_by_s = min(self._leave_by_s, self._clock_s() + self._flush_s)

    @property
    def is_stopping(self) -> bool:
        return self._stop_at_s is not None

    @property
    def may_begin(self) -> bool:
        return not self.is_draining and not self.is_stopping

    def must_leave(self, *, has_rows_in_flight: bool) -> bool:
        return self.is_draining or (self.is_stopping and (not has_rows_in_flight or self.stop_in_s <= 0))

    @property
    def stop_in_s(self) -> float:
        """Seconds until rows in flight are given up; infinite without an order to stop."""
        return float("inf") if self._stop_at_s is None else self._stop_at_s - self._clock_s()

    @property
    def left_s(self) -> float:
        """Seconds that are left to write checkpoints."""
        return self._leave_by_s - self._clock_s()
