"""What one lease of a shard has made, and how much of it a checkpoint has: finished rows, rows under way,
tokens."""

import time
from collections.abc import Callable

from nightshift.rows.outputs import RowResult
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress
from workers.shard.in_flight import InFlight
from workers.shard.segments import Checkpoint


class Ledger:
    """Not thread-safe: it is its shard's runner's, but for `tokens_at_risk`."""

    def __init__(
        self,
        *,
        segment_rows: int,
        segment_interval_s: float,
        carry_over_interval_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """A checkpoint is due after so many finished rows, or so long after the first of them; and, if rows
        have been under way for longer than that, every `carry_over_interval_s` (0: never).
        """
        self._segment_rows = segment_rows
        self._segment_interval_s = segment_interval_s
        self._carry_over_interval_s = carry_over_interval_s
        self._clock_s = clock_s
        self.in_flight: dict[str, InFlight] = {}  # by inference id
        self.left: dict[int, CarryOver] = {}  # of rows that earlier leases began, and this one has not
        self._results: list[RowResult] = []  # in no checkpoint
        self._oldest_result_s = 0.0
        self._carry_over_due_s = clock_s() + carry_over_interval_s
        self._generated = 0  # tokens
        self._covered = 0  # of them, those that a written checkpoint has
        self._redone = 0  # earlier tokens that turned out to be of no use, in no checkpoint

    def begin(self, inference_id: str, flight: InFlight) -> None:
        """A row is in the engine, which goes on from what is left of it, if anything is."""
        flight.since_s = self._clock_s()
        self.in_flight[inference_id] = flight
        self.left.pop(flight.row, None)

    def hear(self, flight: InFlight, progress: Progress) -> None:
        """More of a row."""
        had = flight.num_tokens
        dropped = flight.hear(progress.choice, progress.token_ids, progress.token_logprobs)
        self._redone += dropped
        self._generated += flight.num_tokens - (had - dropped)

    def finish(self, result: RowResult) -> None:
        """A row has its result."""
        if not self._results:
            self._oldest_result_s = self._clock_s()
        self._results.append(result)

    def written(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is in the database."""
        self._covered = checkpoint.tokens_covered

    def tokens_at_risk(self) -> int:
        """How many tokens would be generated again if this process died now. From any thread."""
        return self._generated - self._covered

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is."""
        if self._carry_over_is_due:
            return True
        if not self._results:
            return False
        waited_s = self._clock_s() - self._oldest_result_s
        return len(self._results) >= self._segment_rows or waited_s >= self._segment_interval_s

    @property
    def due_in_s(self) -> float | None:
        """When one will be, if no further row finishes. None: never."""
        at_s = [self._oldest_result_s + self._segment_interval_s] if self._results else []
        if self._carry_over_interval_s and self.in_flight:
            at_s.append(self._carry_over_due_s)
        return min(at_s) - self._clock_s() if at_s else None

    def take(self, rows_total: int | None, *, of_everything: bool = False) -> Checkpoint | None:
        """The next checkpoint: what has finished, and when it is time for that, what has not. None: there
        is nothing new. Rows under way for less than the interval are left out, unless it is of everything.
        """
        unfinished = None
        if of_everything or self._carry_over_is_due:
            unfinished = self._unfinished(0.0 if of_everything else self._carry_over_interval_s)
            self._carry_over_due_s = self._clock_s() + self._carry_over_interval_s
        if not self._results and unfinished is None:
            return None
        left_out = sum(flight.num_tokens - flight.saved for flight in self.in_flight.values())
        checkpoint = Checkpoint(
            results=self._results,
            unfinished=unfinished,
            rows_total=rows_total,
            tokens_left_out=left_out,
            tokens_covered=self._generated - left_out,
            tokens_redone=self._redone,
        )
        self._results, self._redone = [], 0
        return checkpoint

    @property
    def _carry_over_is_due(self) -> bool:
        is_wanted = bool(self._carry_over_interval_s and self.in_flight)
        return is_wanted and self._clock_s() >= self._carry_over_due_s

    def _unfinished(self, older_than_s: float) -> dict[int, CarryOver] | None:
        """All rows begun and not finished, as they stand. None: a listed carry-over has these tokens."""
        since_s = self._clock_s() - older_than_s
        begun = [flight for flight in self.in_flight.values() if flight.since_s <= since_s or flight.saved]
        if all(flight.num_tokens <= flight.saved for flight in begun):
            return None
        unfinished = dict(self.left)
        for flight in begun:
            if (carry_over := flight.carry_over).num_tokens:
                unfinished[flight.row] = carry_over
                flight.saved = carry_over.num_tokens
        return unfinished
