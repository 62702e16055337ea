"""One row inside the engine, and what was generated of it so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift_engine import TokenLogprobs
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.model_server import ModelServer
from workers.shard.pace import Pace
from workers.shard.reader import ReadRow


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class AdmittedRow:
    inference_id: str
    row: int
    read: ReadRow
    server: ModelServer
    num_choices: int
    tries: int = 1  # with this one
    tokens_max: int | None = None  # that its choices can have together; None: it generates none


class InFlight:
    """Only its shard's ledger changes it."""

    def __init__(self, admitted: AdmittedRow, so_far: CarryOver | None, since_s: float) -> None:
        """`so_far`: what the engine was asked to continue."""
        self.admitted = admitted
        self.since_s = since_s
        self.saved = 0 if so_far is None else so_far.num_tokens  # tokens that a listed carry-over has
        self._heard_s: float | None = None  # when its first tokens came …
        self._heard_tokens = 0  # … and how many it had then
        self._so_far = so_far
        self._added: dict[int, ChoiceSoFar] = {}

    @property
    def num_tokens(self) -> int:
        """Earlier tokens included."""
        return sum(len(self._choice(index).token_ids) for index in range(self.admitted.num_choices))

    def add(self, choice: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> int:
        """Add tokens to a choice. An engine that continues earlier tokens repeats them first.

        Returns how many earlier tokens are not continued, and so generated again.
        """
        is_first = not self._added
        self._added.setdefault(choice, ChoiceSoFar()).add(token_ids, logprobs)
        if not is_first or self._so_far is None or self._continues(choice):
            return 0
        dropped, self._so_far, self.saved = self._so_far.num_tokens, None, 0
        return dropped

    def heard(self, now_s: float) -> None:
        """Tokens have come. Before the first, the row may have waited in the engine."""
        if self._heard_s is None:
            self._heard_s, self._heard_tokens = now_s, self.num_tokens

    def pace(self, now_s: float) -> Pace:
        tokens, tokens_max = self.num_tokens, self.admitted.tokens_max
        if self._heard_s is None:
            return Pace(tokens, tokens_max)
        return Pace(tokens, tokens_max, tokens - self._heard_tokens, now_s - self._heard_s)

    @property
    def carry_over(self) -> CarryOver:
        """A copy of the row as it stands, for a later lease."""
        if not self._added and self._so_far is not None:
            return self._so_far
        choices = [self._choice(index).copy() for index in range(self.admitted.num_choices)]
        return CarryOver(choices, self.admitted.server.made_by)

    def _choice(self, index: int) -> ChoiceSoFar:
        if index in self._added:
            return self._added[index]
        earlier = self._so_far.choices if self._so_far is not None else ()
        return earlier[index] if index < len(earlier) else ChoiceSoFar()

    def _continues(self, choice: int) -> bool:
        """The engine continues all choices or none."""
        assert self._so_far is not None
        if len(self._so_far.choices) != self.admitted.num_choices:
            return False
        earlier = self._so_far.choices[choice].token_ids
        return self._added[choice].token_ids[: len(earlier)] == list(earlier)
