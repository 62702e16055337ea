"""Decodes an object in a process of its own (`decoding_process.py`), and reads what that sends."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.bulk.rows.columns.messages import (
    ASKED,
    CPU_S,
    DONE,
    FAILED,
    FETCH,
    MEMORY_BYTES_MAX,
    OPENED,
    Channel,
    TooLargeMessage,
    range_of,
)
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.errors import StorageUnavailable
from nightshift.process.memory import ENVIRONMENT

# Python 3.12 warns of forks beside threads; pyarrow's one is its allocator's, which is ready for them.
COMMAND: Final = (sys.executable, "-P", "-W", "ignore", "-m", "nightshift.bulk.rows.columns.decoding_process")
VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TZ")
"""Variables of the environment that the process gets: others may be credentials."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

KILLED: Final = "The process that decodes it was killed (SIGKILL), by an operator or for want of memory."

Fetch = Callable[[int, int], Iterable[bytes]]


class DecodingKilled(StorageUnavailable):
    """A kill of the process that decoded the object, from outside: its own limits end it by other signals."""


class Decoder:
    """An object that is open in a process of its own, which ends with `close`.

    Methods raise UnreadableInput for an object that cannot be read, or whose decoding ended the process,
    DecodingKilled, and what `fetch` raises.
    """

    def __init__(self, format: str, size_bytes: int, fetch: Fetch) -> None:
        """`fetch` reads the bytes [start, end) of the object."""
        self._fetch = fetch
        self._end, served = socket.socketpair()
        self._watch, watched = socket.socketpair()
        self._channel = Channel(self._end)
        try:
            with served, watched:
                decoding_process.fork(served, watched)
            [(_, opened)] = self.answers({"format": format, "size_bytes": size_bytes})
        except BaseException:
            self.close()
            raise
        description = json.loads(opened)
        self.names: list[str] = description["names"]
        self.unread: dict[str, str] = description["unread"]  # the types of columns that cannot be read
        self.groups: list[tuple[int, int]] = description["groups"]  # Parquet's: rows and bytes

    def close(self) -> None:
        self._end.close()
        self._watch.close()

    def answers(self, question: dict[str, Any]) -> Iterator[tuple[bytes, bytearray]]:
        """The messages that answer a question, the last of which is DONE or OPENED."""
        kind = ASKED
        with self._alive():
            self._channel.send_json(ASKED, question)
        while kind not in (DONE, OPENED):
            with self._alive():
                kind, payload = self._channel.receive()
            if kind == FETCH:
                self._send(*range_of(payload))
            elif kind == FAILED:
                raise UnreadableInput(f"{payload.decode(errors='replace').rstrip('.')}.")
            else:
                yield kind, payload

    def _send(self, start: int, end: int) -> None:
        """Sends the bytes [start, end) of the object."""
        for piece in self._fetch(start, end):
            start += len(piece)
            with self._alive():
                self._end.sendall(piece)
        if start != end:
            raise UnreadableInput("It is cut short.")

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Raises an error that says how the process ended, where it did."""
        try:
            yield
        except (EOFError, OSError) as error:
            status = self._watch.recv(16)
            if not status:
                raise StorageUnavailable("The process that decodes objects has ended.") from error
            if int(status) == -signal.SIGKILL:
                raise DecodingKilled(KILLED) from error
            raise UnreadableInput(_why_ended(int(status))) from error
        except TooLargeMessage as error:
            raise UnreadableInput(str(error)) from error


def _why_ended(exit_code: int) -> str:
    if exit_code == -signal.SIGXCPU:
        return f"Decoding a part of it takes more than {CPU_S} s of CPU time."
    cause = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
    return (
        f"Decoding it ended the process that does so ({cause}): it is damaged, or takes more than "
        f"{MEMORY_BYTES_MAX} bytes of memory."
    )


@dataclass
class _DecodingProcess:
    """The process that forks one for each object. It starts when it is needed, and ends with this one."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starter: int = 0  # the process that started it: one that is forked from that starts its own
    _process: subprocess.Popen[bytes] | None = None
    _control: socket.socket | None = None

    @property
    def id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def fork(self, served: socket.socket, watched: socket.socket) -> None:
        """Raises StorageUnavailable."""
        descriptors = [served.fileno(), watched.fileno()]
        with self._lock:
            try:
                if self._control is not None and self._starter == os.getpid():
                    with suppress(OSError):
                        socket.send_fds(self._control, [b"+"], descriptors)
                        return
                self._start()
                assert self._control is not None
                socket.send_fds(self._control, [b"+"], descriptors)
            except OSError as error:
                raise StorageUnavailable(f"The process that decodes objects cannot start: {error}") from error

    def _start(self) -> None:
        self.end()
        self._control, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=kept | ENVIRONMENT | ONE_THREAD,
                start_new_session=True,  # Ctrl-C is not for it: what is read would seem to be damaged
            )
        self._starter = os.getpid()

    def end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._starter == os.getpid():
            self._process.wait()
        self._control = self._process = None


decoding_process: Final = _DecodingProcess()
atexit.register(decoding_process.end)
