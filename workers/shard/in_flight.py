"""One row inside the engine: whose it is, and what has been generated of it so far."""

import time
from collections.abc import Sequence

from nightshift.rows.requests import RowRequest
from workers.engine import TokenLogprobs
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.model_server import ModelServer


class InFlight:
    """A row given to the engine. Not thread-safe: it is its shard's runner's."""

    def __init__(
        self,
        row: int,
        request: RowRequest,
        server: ModelServer,
        num_choices: int,
        so_far: CarryOver | None = None,
        tries: int = 1,
    ) -> None:
        """`so_far` is what an earlier attempt left; the engine was asked to go on from it."""
        self.row = row
        self.request = request
        self.server = server
        self.tries = tries  # this one included
        self.since_s = time.monotonic()
        self.saved = 0 if so_far is None else so_far.num_tokens  # tokens that a listed carry-over has
        self._num_choices = num_choices
        self._so_far = so_far
        self._heard: dict[int, ChoiceSoFar] = {}

    @property
    def num_tokens(self) -> int:
        """What would be lost if nothing of this row were saved."""
        return sum(len(self._choice(index).token_ids) for index in range(self._num_choices))

    def hear(self, choice: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> int:
        """More of a choice. The first time, an engine that goes on from earlier tokens repeats them.

        Returns how many earlier tokens it turns out not to go on from: they are generated again.
        """
        is_first = not self._heard
        self._heard.setdefault(choice, ChoiceSoFar()).add(token_ids, logprobs)
        if not is_first or self._so_far is None or self._goes_on(choice):
            return 0
        dropped, self._so_far, self.saved = self._so_far.num_tokens, None, 0
        return dropped

    @property
    def carry_over(self) -> CarryOver:
        """The row as it stands, for somebody else to go on with: a copy."""
        if not self._heard and self._so_far is not None:
            return self._so_far
        return CarryOver(
            [self._choice(index).copy() for index in range(self._num_choices)], self.server.made_by
        )

    def _choice(self, index: int) -> ChoiceSoFar:
        if index in self._heard:
            return self._heard[index]
        earlier = self._so_far.choices if self._so_far is not None else ()
        return earlier[index] if index < len(earlier) else ChoiceSoFar()

    def _goes_on(self, choice: int) -> bool:
        """Whether the engine took the earlier tokens up, as its first words show: of all choices or none."""
        assert self._so_far is not None
        if len(self._so_far.choices) != self._num_choices:
            return False
        earlier = self._so_far.choices[choice].token_ids
        return self._heard[choice].token_ids[: len(earlier)] == list(earlier)
