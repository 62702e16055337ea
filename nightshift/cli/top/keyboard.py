"""Keys as they are pressed, and everything else that wakes the screen, at one place to wait for."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

KEYS_MAX: Final = 64  # read at once
ENDED_BY_SIGNAL: Final = 128  # plus its number: a process's exit code


class Wakeups:
    """`wait` returns the keys pressed meanwhile. `wake` ends it from any thread; so does a resize."""

    def __init__(self, keyboard: int | None, woken: int, waking: int) -> None:
        self._keyboard = keyboard
        self._woken = woken
        self._waking = waking

    @property
    def has_keys(self) -> bool:
        return self._keyboard is not None

    def wake(self) -> None:
        os.write(self._waking, b"\0")

    def wait(self, timeout_s: float) -> str:
        sources = [self._woken] if self._keyboard is None else [self._woken, self._keyboard]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._keyboard is None or self._keyboard not in ready:
            return ""
        pressed = os.read(self._keyboard, KEYS_MAX)
        if not pressed:  # the terminal is gone, or standard input has ended
            self._keyboard = None
        return pressed.decode("utf-8", "replace")


@contextmanager
def wakeups() -> Iterator[Wakeups]:
    """The terminal is left as it was, also when a signal ends the process."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    with _keyboard() as keyboard, _signals(waking):
        try:
            yield Wakeups(keyboard, woken, waking)
        finally:
            os.close(woken)
            os.close(waking)


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Standard input without echo and without waiting for Enter. None: it is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _signals(waking: int) -> Iterator[None]:
    wakeup_before = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    handlers = {signal.SIGWINCH: _resized, signal.SIGTERM: _ended, signal.SIGHUP: _ended}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)


def _resized(number: int, frame: FrameType | None) -> None:
    """The wakeup is enough: the screen is drawn anew for the terminal's size."""


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(ENDED_BY_SIGNAL + number)
