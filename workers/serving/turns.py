"""The choice of the worker's model that steps next.

Models step at once unless the operator has them step in turn, on a CPU: two that step at once share every
core's cache, but none waits for another's long pass. In turn, each model with
work gets the same time: the next turn is that of the model which has had the least. While a client waits for
one, the passes of encoders are cut short.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# A model that has had less time than those that wait is waited for so long between two of its steps.
BETWEEN_STEPS_S: Final = 0.002
# A client that waited for a model this long ago still reads its answer.
URGENT_S: Final = 1.0


class StepTurns:
    """Thread-safe."""

    def __init__(
        self,
        *,
        one_at_a_time: bool,
        urgent_step_s: float | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`urgent_step_s`: how long others' steps should take while a client waits for a model; None: they
        may take as long as they like.
        """
        self._one_at_a_time = one_at_a_time
        self._urgent_step_s = urgent_step_s
        self._urgent_until_s: dict[str, float] = {}
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._stepping = 0
        self._pauses = 0  # under way, or waiting for steps to end
        self._used_s: dict[str, float] = {}  # by model; one that was idle is taken to have used its share
        self._least_s = 0.0  # what the model of the last turn had used
        self._waiting: set[str] = set()
        self._expected: dict[str, float] = {}  # models between two steps, and until when

    @contextmanager
    def turn(self, model_id: str, *, is_urgent: bool = False) -> Iterator[None]:
        """Waits for the model's turn and holds it for one step. `is_urgent`: a client waits for it."""
        with self._changed:
            if is_urgent:
                self._urgent_until_s[model_id] = self._clock_s() + URGENT_S
            if self._expected.pop(model_id, 0.0) <= self._clock_s():  # it has been idle
                self._used_s[model_id] = max(self._used_s.get(model_id, 0.0), self._least_s)
            self._waiting.add(model_id)
            while not self._may_step(model_id):
                self._changed.wait(self._patience_s())
            self._waiting.remove(model_id)
            self._stepping += 1
            self._least_s = max(self._least_s, self._used(model_id))
        began_s = self._clock_s()
        try:
            yield
        finally:
            with self._changed:
                ended_s = self._clock_s()
                self._stepping -= 1
                if model_id in self._used_s:  # it has not gone meanwhile
                    self._used_s[model_id] += ended_s - began_s
                    self._expected[model_id] = ended_s + BETWEEN_STEPS_S
                self._changed.notify_all()

    def step_s(self, model_id: str) -> float | None:
        """Seconds that a step of this model should take now: less while a client waits for another. None: it
        does not matter.
        """
        if self._urgent_step_s is None or not self._one_at_a_time:
            return None
        now_s = self._clock_s()
        others = [until_s for id, until_s in list(self._urgent_until_s.items()) if id != model_id]
        return self._urgent_step_s if any(until_s > now_s for until_s in others) else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets no step run meanwhile: transformers changes torch's defaults for all threads while it makes
        the modules of a model.
        """
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: not self._stepping)
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def forget(self, model_id: str) -> None:
        """The model has gone. A step of it may still be under way, or wait: it ends as any other."""
        with self._changed:
            self._used_s.pop(model_id, None)
            self._urgent_until_s.pop(model_id, None)
            self._expected.pop(model_id, None)
            self._changed.notify_all()  # it may have been waited for

    def _may_step(self, model_id: str) -> bool:
        if self._pauses:
            return False
        if not self._one_at_a_time:
            return True
        return not self._stepping and model_id == self._next()

    def _next(self) -> str:
        """The one that has had the least time, of those that wait or will at once."""
        now_s = self._clock_s()
        soon = (id for id, until_s in self._expected.items() if until_s > now_s)
        return min((*self._waiting, *soon), key=lambda id: (self._used(id), id))

    def _used(self, model_id: str) -> float:
        return self._used_s.get(model_id, self._least_s)

    def _patience_s(self) -> float | None:
        """Seconds until a model that is waited for has come or not. None: for a notification."""
        if self._pauses or self._stepping or not self._one_at_a_time:
            return None
        ends_s = [until_s for id, until_s in self._expected.items() if id not in self._waiting]
        return max(0.0, min(ends_s, default=0.0) - self._clock_s()) or BETWEEN_STEPS_S
