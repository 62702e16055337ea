"""What one lease of a shard has made, and how much of that the database has.

begin ──► in flight ──────── finish ──► result ── take_checkpoint ──► unlisted ── listed ──► done
            │   ▲ progress                ▲
            │   └───────                  │
            ├── interrupt: it begins again│
            └── give_up                   └── finish, of a row that the engine never had
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from nightshift.bulk.results.row_results import RowResult
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress
from workers.shard.checkpoints import Checkpoint
from workers.shard.config import ShardConfig
from workers.shard.pace import hopeless_rows
from workers.shard.row import AdmittedRow, InFlight

HELD_CHARS: Final = 2 * 1024 * 1024  # a checkpoint is due once its results have so much text and vectors


class Ledger:
    """Only the runner's thread changes it, in order; any thread may ask for `tokens_at_risk`."""

    def __init__(
        self,
        config: ShardConfig,
        *,
        is_spaced: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_spaced`: segments of quick rows wait for more of them."""
        self._config = config
        self._is_spaced = is_spaced
        self._clock_s = clock_s
        self._is_open = True
        self._in_flight: dict[int, InFlight] = {}  # by row
        self._earlier: dict[int, CarryOver] = {}  # of rows that this lease has not begun
        self._results: list[RowResult] = []  # in no checkpoint
        self._held_chars = 0  # of them
        self._unlisted: deque[Checkpoint] = deque()
        self._oldest_result_s = 0.0
        self._carry_over_due_s = clock_s() + config.carry_over_interval_s
        self._generated = 0  # tokens
        self._covered = 0  # of them, in listed checkpoints
        self._redone = 0  # earlier tokens not continued, in no checkpoint yet
        self.rows_finished = 0
        self._longest = 0  # tokens of the row with the most, of those that have ended

    # -- changes

    def resume(self, carry_overs: Mapping[int, CarryOver]) -> None:
        """What earlier leases left of rows that have no result."""
        assert not self._in_flight, "rows have begun without what was left of them"
        self._earlier = dict(carry_overs)

    def begin(self, admitted: AdmittedRow) -> None:
        """The engine continues what an earlier lease left of the row."""
        assert self._is_open, "a row has begun after the last checkpoint"
        assert admitted.row not in self._in_flight, f"row {admitted.row} is in flight already"
        earlier = self._earlier.pop(admitted.row, None)
        self._in_flight[admitted.row] = InFlight(admitted, earlier, self._clock_s())

    def progress(self, row: int, progress: Progress) -> None:
        assert row in self._in_flight, f"row {row} is not in flight"
        flight = self._in_flight[row]
        if not progress.token_ids and not flight.saved:
            return  # an encoder's
        had = flight.num_tokens
        dropped = flight.add(progress.choice, progress.token_ids, progress.token_logprobs)
        flight.heard(self._clock_s())
        self._redone += dropped
        self._generated += flight.num_tokens - (had - dropped)

    def interrupt(self, row: int) -> None:
        """The engine broke the row off, and it may begin again; or it was cancelled."""
        assert row in self._in_flight, f"row {row} is not in flight"
        del self._in_flight[row]

    def finish(self, result: RowResult) -> None:
        """Of a row in flight, or refused before."""
        assert self._is_open, "a row has finished after the last checkpoint"
        self._in_flight.pop(result.row, None)
        self.rows_finished += 1
        self._longest = max(self._longest, result.usage.completion_tokens)
        if not self._results:
            self._oldest_result_s = self._clock_s()
        self._results.append(result)
        self._held_chars += result.num_chars

    def take_checkpoint(self, rows_total: int | None, *, of_everything: bool = False) -> Checkpoint | None:
        """New results and, when they are due, the rows in flight for at least the interval; or,
        `of_everything`, all of them. None: there is nothing new.
        """
        assert self._is_open, "the last checkpoint has been taken"
        unfinished = None
        if of_everything or self.carry_over_is_due:
            unfinished = self._unfinished(0.0 if of_everything else self._config.carry_over_interval_s)
            self._carry_over_due_s = self._clock_s() + self._config.carry_over_interval_s
        if not self._results and unfinished is None:
            return None
        left_out = sum(flight.num_tokens - flight.saved for flight in self._in_flight.values())
        checkpoint = Checkpoint(
            results=self._results,
            unfinished=unfinished,
            rows_total=rows_total,
            tokens_left_out=left_out,
            tokens_covered=self._generated - left_out,
            tokens_redone=self._redone,
        )
        self._results, self._held_chars, self._redone = [], 0, 0
        self._unlisted.append(checkpoint)
        return checkpoint

    def listed(self, checkpoint: Checkpoint) -> None:
        """In the order in which they were taken."""
        assert self._unlisted, "no checkpoint was taken"
        oldest = self._unlisted.popleft()
        assert oldest is checkpoint, "another checkpoint is to be listed first"
        self._covered = checkpoint.tokens_covered

    def give_up(self) -> None:
        """Forget the rows in flight: the last checkpoint is taken."""
        assert self._is_open, "the rows in flight have been given up"
        self._is_open = False
        self._in_flight.clear()

    # -- questions

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """By row; not to be changed."""
        return MappingProxyType(self._in_flight)

    @property
    def unlisted(self) -> int:
        """How many checkpoints the database does not have yet."""
        return len(self._unlisted)

    def earlier(self, row: int) -> CarryOver | None:
        """What an earlier lease left of it."""
        return self._earlier.get(row)

    def tokens_at_risk(self) -> int:
        """Tokens generated again if this process died now."""
        return self._generated - self._covered

    @property
    def oldest_age_s(self) -> float | None:
        """Of the rows in flight."""
        oldest = next(iter(self._in_flight.values()), None)  # they lie in the order in which they began
        return None if oldest is None else self._clock_s() - oldest.since_s

    def begun_before(self, age_s: float) -> list[AdmittedRow]:
        """The rows in flight for at least so long."""
        until_s = self._clock_s() - age_s
        begun = takewhile(lambda flight: flight.since_s <= until_s, self._in_flight.values())
        return [flight.admitted for flight in begun]

    def hopeless(self, left_s: float) -> list[AdmittedRow]:
        """The rows in flight that will not end within this time."""
        now_s = self._clock_s()
        paces = {row: flight.pace(now_s) for row, flight in self._in_flight.items()}
        return [self._in_flight[row].admitted for row in hopeless_rows(paces, self._longest, left_s)]

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is, for the number, size or age of results, or the age of rows in flight."""
        if self.carry_over_is_due or self._held_chars >= HELD_CHARS:
            return True
        if not self._results:
            return False
        return self._clock_s() - self._oldest_result_s >= self._segment_s

    @property
    def due_in_s(self) -> float | None:
        """If no further row finishes. None: never."""
        at_s = [self._oldest_result_s + self._segment_s] if self._results else []
        if self._config.carry_over_interval_s and self._in_flight:
            at_s.append(self._carry_over_due_s)
        return min(at_s) - self._clock_s() if at_s else None

    @property
    def carry_over_is_due(self) -> bool:
        """Whether a checkpoint has the tokens of rows in flight."""
        is_wanted = bool(self._config.carry_over_interval_s and self._in_flight)
        return is_wanted and self._clock_s() >= self._carry_over_due_s

    @property
    def _segment_s(self) -> float:
        """From the first result of a segment to its end, with the results there are."""
        rows = len(self._results)
        if rows >= (self._config.segment_rows_max if self._is_spaced else self._config.segment_rows):
            return 0.0
        is_full = rows >= self._config.segment_rows
        return self._config.segment_spacing_s if is_full else self._config.segment_interval_s

    def _unfinished(self, older_than_s: float) -> dict[int, CarryOver] | None:
        """None: a listed carry-over has all tokens."""
        since_s = self._clock_s() - older_than_s
        begun = [flight for flight in self._in_flight.values() if flight.since_s <= since_s or flight.saved]
        if all(flight.num_tokens <= flight.saved for flight in begun):
            return None
        unfinished = dict(self._earlier)
        for flight in begun:
            if (carry_over := flight.carry_over).num_tokens:
                unfinished[flight.admitted.row] = carry_over
                flight.saved = carry_over.num_tokens
        return unfinished
