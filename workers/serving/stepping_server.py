"""A model server with a thread of its own, which steps while there is work.

Listeners are called on that thread, between steps, and must return at once. An exception that escapes a step
ends the process, which would otherwise keep its leases and run nothing.
"""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from nightshift.fleet.models import Model
from nightshift_engine import EncoderStats, EngineStats
from workers.serving.busy import RecentShare
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.turns import StepTurns

# Steps until nothing cancelled is in the engine: the one under way may have it, the next takes it out.
STEPS_UNTIL_CANCELLED: Final = 2


class SteppingServer(ModelServer):
    """A model in this process or one of its own, stepped by a thread here."""

    def __init__(self, model: Model, on_fatal: OnFatal) -> None:
        super().__init__(model)
        self._on_fatal = on_fatal
        self._turns = StepTurns(one_at_a_time=False)
        self._changed = threading.Condition()
        self._is_stopping = False
        self._after_cancelled: list[tuple[int, Callable[[], None]]] = []  # (step, callback)
        self._near_roofline = RecentShare()  # of the time in steps
        self._thread = threading.Thread(target=self._run, name=f"engine-{model.id}", daemon=True)

    def start(self) -> None:
        self.engine_stats = self._read_stats()
        self._thread.start()

    def stop(self) -> None:
        """Lets the step in progress end and starts no other."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._call_after_cancelled()  # what it still holds runs no more
        self._close()
        self._turns.forget(self.model.id)

    def share_device(self, turns: StepTurns) -> None:
        """Steps in turn with other models; called before `start`."""
        self._turns = turns

    def after_cancelled(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once nothing cancelled before this is in the engine, which a stuck step may never
        reach. On the engine's thread; at once where that does not run.
        """
        with self._changed:
            runs = self._thread.is_alive() and not self._is_stopping
            if runs:
                self._after_cancelled.append((self.steps + STEPS_UNTIL_CANCELLED, callback))
                self._changed.notify()
        if not runs:
            callback()

    @property
    def busy_seconds(self) -> float:
        """Seconds that the server has been in steps since its start, the one under way included."""
        ended_s, since_s = self.step_seconds, self.stepping_since_s
        return ended_s + (0.0 if since_s is None else max(0.0, time.monotonic() - since_s))

    @property
    def roofline_fraction(self) -> float | None:
        """Share of the last seconds in steps that they take at the device's best; None: it is not known."""
        least_s = getattr(self.engine_stats, "roofline_seconds", None)
        return None if least_s is None else self._near_roofline.at(self.step_seconds, least_s)

    @property
    @abstractmethod
    def _has_work(self) -> bool: ...

    @property
    def _is_urgent(self) -> bool:
        """Whether a client waits for an answer of the class interactive."""
        return False

    def _close(self) -> None:
        """Gives back what it holds outside this process. No step is under way."""

    def _prepare_step(self) -> None:
        """Waits for what a step needs before it needs the device."""

    @abstractmethod
    def _step(self) -> None: ...

    def _read_stats(self) -> EngineStats | EncoderStats | None:
        """Called between steps."""
        return None

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._has_work or self._is_stopping or bool(self._after_cancelled)
                    )
                    if self._is_stopping:
                        return
                if self._has_work:
                    self._timed_step()
                self._call_after_cancelled()
        except BaseException as error:  # noqa: BLE001 the thread's edge
            self._on_fatal(error)

    def _call_after_cancelled(self) -> None:
        """Calls `callback` between steps, or after the last. Without work the engine holds nothing."""
        with self._changed:
            is_empty, waiting = not self._has_work or self._is_stopping, self._after_cancelled
            due = [callback for step, callback in waiting if is_empty or step <= self.steps]
            self._after_cancelled = [] if is_empty else [one for one in waiting if one[0] > self.steps]
        for callback in due:
            callback()

    def _timed_step(self) -> None:
        self._prepare_step()
        with self._turns.turn(self.model.id, is_urgent=self._is_urgent):
            began_s = self.stepping_since_s = time.monotonic()
            self._step()
            self.stepping_since_s = None
        self.steps += 1
        ended_s = time.monotonic()
        self.step_seconds += ended_s - began_s
        self._busy.note(ended_s, self.step_seconds)
        self.engine_stats = self._read_stats()
        least_s = getattr(self.engine_stats, "roofline_seconds", None)
        if least_s is not None:
            self._near_roofline.note(self.step_seconds, least_s)
