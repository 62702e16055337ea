"""Keeps account of what one lease of a shard has made, and how much of that the database has.

begin ──► in flight ──────── finish ──► result ── take_checkpoint ──► unlisted ── listed ──► done
            │   ▲ progress                ▲
            │   └───────                  │
            ├── interrupt: begin continues│
            └── give_up                   └── finish, for a row that the engine never had
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from types import MappingProxyType

from nightshift.bulk.results.row_results import RowResult
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress
from workers.shard.checkpoints import Checkpoint
from workers.shard.config import ShardConfig
from workers.shard.row import ShardRow, hopeless_rows


class Ledger:
    """The ledger of a lease. Only the runner's thread changes it, in order; any thread may ask for
    `tokens_at_risk`.
    """

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
        self._in_flight: dict[int, ShardRow] = {}  # by number, in the order in which they began
        self.chars_in_flight = 0
        self._earlier: dict[int, CarryOver] = {}  # of rows that are to begin
        self._results: list[RowResult] = []  # in no checkpoint
        self._held_chars = 0  # in them
        self._unlisted: deque[Checkpoint] = deque()
        self._oldest_result_s = 0.0
        self._carry_over_due_s = clock_s() + config.carry_over_interval_s
        self._generated = 0  # tokens
        self._covered = 0  # tokens in listed checkpoints
        self._redone = 0  # earlier tokens not continued, in no checkpoint yet
        self.rows_finished = 0
        self._longest = 0  # tokens of the longest row that has ended

    # -- changes

    def resume(self, carry_overs: Mapping[int, CarryOver]) -> None:
        """Takes what earlier leases left of rows that have no result."""
        assert not self._in_flight, "rows have begun without what was left of them"
        self._earlier = dict(carry_overs)

    def begin(self, row: ShardRow) -> None:
        """The engine continues what an earlier lease left of the row."""
        assert self._is_open, "a row has begun after the last checkpoint"
        assert row.number not in self._in_flight, f"row {row.number} is in flight already"
        row.begin(self._earlier.pop(row.number, None), self._clock_s())
        self._in_flight[row.number] = row
        self.chars_in_flight += row.chars

    def progress(self, number: int, progress: Progress) -> None:
        assert number in self._in_flight, f"row {number} is not in flight"
        row = self._in_flight[number]
        if not progress.token_ids and progress.so_far is None and not row.saved:
            return  # an encoder generates none
        tokens_before = row.num_tokens
        dropped = row.add(progress)
        row.heard(self._clock_s())
        self._redone += dropped
        self._generated += row.num_tokens - (tokens_before - dropped)

    def interrupt(self, number: int) -> None:
        """The engine broke the row off, and the next try continues its tokens; or it was cancelled."""
        assert number in self._in_flight, f"row {number} is not in flight"
        row = self._in_flight.pop(number)
        self.chars_in_flight -= row.chars
        if row.num_tokens:
            self._earlier[number] = row.carry_over

    def finish(self, result: RowResult) -> None:
        """Takes the result of a row in flight, or of one that was refused before."""
        assert self._is_open, "a row has finished after the last checkpoint"
        if (row := self._in_flight.pop(result.row, None)) is not None:
            self.chars_in_flight -= row.chars
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
        left_out = sum(row.num_tokens - row.saved for row in self._in_flight.values())
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
        """Checkpoints are listed in the order in which they were taken."""
        assert self._unlisted, "no checkpoint was taken"
        oldest = self._unlisted.popleft()
        assert oldest is checkpoint, "another checkpoint is to be listed first"
        self._covered = checkpoint.tokens_covered

    def give_up(self) -> None:
        """Forgets the rows in flight: the last checkpoint is taken."""
        assert self._is_open, "the rows in flight have been given up"
        self._is_open = False
        self._in_flight.clear()

    # -- questions

    @property
    def is_open(self) -> bool:
        """Whether rows may begin and finish."""
        return self._is_open

    @property
    def in_flight(self) -> Mapping[int, ShardRow]:
        """Rows in the engine by number; not to be changed."""
        return MappingProxyType(self._in_flight)

    @property
    def unlisted(self) -> int:
        """The number of checkpoints that the database does not have yet."""
        return len(self._unlisted)

    def earlier(self, number: int) -> CarryOver | None:
        """The tokens that an earlier lease or try left of a row that is to begin."""
        return self._earlier.get(number)

    def tokens_at_risk(self) -> int:
        """Tokens generated again if this process died now."""
        return self._generated - self._covered

    @property
    def oldest_age_s(self) -> float | None:
        """Seconds for which the oldest row has been in flight."""
        oldest = next(iter(self._in_flight.values()), None)
        return None if oldest is None else self._clock_s() - oldest.since_s

    def begun_before(self, age_s: float) -> list[ShardRow]:
        """The rows in flight for at least so long."""
        until_s = self._clock_s() - age_s
        return [*takewhile(lambda row: row.since_s <= until_s, self._in_flight.values())]

    def hopeless(self, left_s: float) -> list[ShardRow]:
        """The rows in flight that will not end within this time."""
        return hopeless_rows(self._in_flight.values(), self._longest, left_s, self._clock_s())

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is, for the number, size or age of results, or the age of rows in flight."""
        if self.carry_over_is_due or self._held_chars >= self._config.held_chars_max:
            return True
        return bool(self._results) and self._clock_s() - self._oldest_result_s >= self._segment_s

    @property
    def due_in_s(self) -> float | None:
        """Seconds until a checkpoint is due if no further row finishes. None: never."""
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
        """Seconds from the first result of a segment to its end, with the results there are."""
        rows = len(self._results)
        if rows >= (self._config.segment_rows_max if self._is_spaced else self._config.segment_rows):
            return 0.0
        is_full = rows >= self._config.segment_rows
        return self._config.segment_spacing_s if is_full else self._config.segment_interval_s

    def _unfinished(self, older_than_s: float) -> dict[int, CarryOver] | None:
        """Rows in flight to be carried over. None: a listed carry-over has all their tokens."""
        since_s = self._clock_s() - older_than_s
        begun = [row for row in self._in_flight.values() if row.since_s <= since_s or row.saved]
        if all(row.num_tokens <= row.saved for row in begun):
            return None
        unfinished = dict(self._earlier)
        for row in begun:
            if (carry_over := row.carry_over).num_tokens:
                unfinished[row.number] = carry_over
                row.saved = carry_over.num_tokens
        return unfinished
