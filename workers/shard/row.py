"""One row of a bulk shard, from its reading to its result, as one object.

READ ──► RUNNING ──► ENDED
  │ ▲       └── the engine broke it off: READ again
  ▼ │
WAITING, while another row with the same request runs
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from nightshift.bulk.results.row_results import RowResult
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject, ShardObject
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.model_server import ModelServer, Tokens

SLACK: Final = 2.0  # rows speed up when others are taken out: a row is given up if it needs twice the time


class RowState(Enum):
    READ = auto()
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)  # one for each row: frozen ones take longer to make
class ShardRow:
    """A row of a shard. Only its shard's thread changes it, once the reader has given it away."""

    number: int  # from 0 in its shard
    custom_id: str
    kept: str | None  # its columns, as in a result
    request: ModelRequest | None = None  # None: it cannot be run …
    refused: InvalidRequest | None = None  # … for this reason
    tokens: Tokens | InvalidRequest | None = None  # as `ModelServer.tokenize` gives them
    digest: bytes | None = None  # of its request
    is_shareable: bool = False  # whether a row with the same digest may have its answer
    object: ShardObject | None = None  # which is the row
    body: JsonObject | None = None  # of its request, where its server takes bodies
    chars: int = 0  # in its texts
    state: RowState = RowState.READ
    known: RowResult | None = None  # another row's with the same digest, to be taken over
    tries: int = 0  # how often it has begun
    breaks: int = 0  # as its server told them when it returned it
    inference_id: str = ""  # of the last try
    server: ModelServer | None = None  # which has it
    since_s: float = 0.0  # when it began, on the monotonic clock
    so_far: CarryOver | None = None  # what the engine was asked to continue
    saved: int = 0  # tokens that a listed carry-over has
    added: dict[int, ChoiceSoFar] | None = None  # new tokens by choice; None: none yet
    heard_s: float | None = None  # when its first tokens came …
    heard_tokens: int = 0  # … and how many it had then

    def begin(self, so_far: CarryOver | None, now_s: float) -> None:
        """Notes that the engine has it, and continues `so_far`."""
        self.state = RowState.RUNNING
        self.since_s = now_s
        self.so_far = so_far
        self.saved = 0 if so_far is None else so_far.num_tokens
        self.added, self.heard_s, self.heard_tokens = None, None, 0

    @property
    def num_choices(self) -> int:
        return 0 if self.request is None else self.request.num_choices

    @property
    def num_tokens(self) -> int:
        """Tokens generated of all choices, those of earlier leases included."""
        return sum(self._choice(index).num_tokens for index in range(self.num_choices))

    def add(self, progress: Progress) -> int:
        """Adds tokens to a choice. A server that continues earlier ones repeats them first.

        Returns how many earlier tokens are not continued, and so generated again.
        """
        if progress.so_far is not None:
            return self._replace(progress.so_far)
        is_first, choice = not self.added, progress.choice
        self.added = self.added or {}
        self.added.setdefault(choice, ChoiceSoFar()).add(progress.token_ids, progress.token_logprobs)
        if not is_first or self.so_far is None or self._continues(self.so_far, choice):
            return 0
        return self._drop(self.so_far.num_tokens)

    def _replace(self, so_far: ChoiceSoFar) -> int:
        before, before_tokens = self._choice(0), self.num_tokens
        self.added = {0: so_far}
        if not before.token_ids and so_far.text.startswith(before.text):
            return 0
        return self._drop(before_tokens)

    def _drop(self, num_tokens: int) -> int:
        self.so_far, self.saved = None, 0
        return num_tokens

    def heard(self, now_s: float) -> None:
        """Notes that tokens have come. Before the first, the row may have waited in the engine."""
        if self.heard_s is None:
            self.heard_s, self.heard_tokens = now_s, self.num_tokens

    @property
    def carry_over(self) -> CarryOver:
        """A copy of the row as it stands, for a later lease."""
        if not self.added and self.so_far is not None:
            return self.so_far
        assert self.server is not None, "it has begun"
        made_by = None if self.request is None else self.server.made_by_of(self.request.model)
        return CarryOver([self._choice(index).copy() for index in range(self.num_choices)], made_by)

    def _choice(self, index: int) -> ChoiceSoFar:
        if self.added and index in self.added:
            return self.added[index]
        earlier = self.so_far.choices if self.so_far is not None else ()
        return earlier[index] if index < len(earlier) else ChoiceSoFar()

    def _continues(self, so_far: CarryOver, choice: int) -> bool:
        """Whether the engine continues earlier tokens: those of all choices or none."""
        if len(so_far.choices) != self.num_choices:
            return False
        earlier = so_far.choices[choice]
        if earlier.tokens_without_ids:
            return False
        return self._choice(choice).token_ids[: len(earlier.token_ids)] == list(earlier.token_ids)


def hopeless_rows(rows: Iterable[ShardRow], longest: int, left_s: float, now_s: float) -> list[ShardRow]:
    """Returns the rows in flight that will not end within `left_s`; without a measured speed none.

    A row that has not begun may be as fast as the fastest.

    A row ends at its `max_tokens` at the latest. It is taken to end no later than the longest row that has
    ended (`longest` tokens, or 0), unless it has more tokens already.
    """
    speeds = {row: _tokens_per_s(row, now_s) for row in rows}
    fastest = max(speeds.values(), default=0.0)
    if fastest == 0:
        return []
    return [row for row, speed in speeds.items() if _needs_s(row, longest, speed or fastest) > SLACK * left_s]


def _tokens_per_s(row: ShardRow, now_s: float) -> float:
    """Speed of a row since its first tokens; 0 where it is not known."""
    if row.heard_s is None or now_s <= row.heard_s:
        return 0.0
    return (row.num_tokens - row.heard_tokens) / (now_s - row.heard_s)


def _needs_s(row: ShardRow, longest: int, tokens_per_s: float) -> float:
    tokens, tokens_max = row.num_tokens, _tokens_max(row)
    if tokens_max is None:
        return 0.0
    end = longest if tokens < longest < tokens_max else tokens_max
    return max(0, end - tokens) / tokens_per_s


def _tokens_max(row: ShardRow) -> int | None:
    """Tokens that a row's choices can have together; None: it generates none."""
    request = row.request
    if not isinstance(request, GenerationRequest) or row.server is None:
        return None
    tokens_max = request.output_tokens_max
    return request.num_choices * (row.server.context_length if tokens_max is None else tokens_max)
