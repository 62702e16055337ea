"""Messages to a shard's runner."""

from dataclasses import dataclass
from queue import Empty, SimpleQueue

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import StopReason
from workers.serving.inference import Progress
from workers.shard.checkpoints import Checkpoint


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class RowProgress:
    row: int
    inference_id: str
    progress: Progress


@dataclass(frozen=True)
class RowsRead:
    """After the runner had taken all that were read, or at the end of the input."""


@dataclass(frozen=True)
class TurnCame:
    """Another row with the same request has ended: with this result, or this row is to be run."""

    row: int
    result: RowResult | None


@dataclass(frozen=True)
class CheckpointListed:
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Failure:
    """The shard cannot continue: its lease is lost, or no retry can write a checkpoint."""

    error: Exception


@dataclass(frozen=True)
class Drain:
    """Hand the shard back, with finished rows and the tokens of unfinished ones."""


Message = RowProgress | RowsRead | TurnCame | CheckpointListed | Failure | Drain | StopReason


class Inbox:
    """Written by any thread, read by the shard's."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message) -> None:
        self._messages.put(message)

    def get(self, timeout_s: float) -> Message | None:
        """None after this time, which may be infinite."""
        try:
            return self._messages.get(timeout=None if timeout_s == float("inf") else max(0.0, timeout_s))
        except Empty:
            return None
