"""Starts and ends the processes of engines. Imports no torch, so that one may start while the worker does."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nightshift.process.settings import WorkerSettings
from workers.serving.engine_process.channel import Channel

PROGRAM: Final = "workers.serving.engine_process"
CLOSE_S: Final = 10.0
SWITCH_INTERVAL_S: Final = 0.0005
"""Longest wait of an engine's thread, after a kernel's call, for another thread that runs Python."""

Launched = tuple[subprocess.Popen[bytes], Channel]

_ahead: list[Launched] = []


def has_engine_process(settings: WorkerSettings, cores: int) -> bool:
    """Whether the worker's decoder runs in a process of its own, on a machine with so many cores."""
    if settings.engine_process is not None:
        return settings.engine_process
    is_alone = len(settings.models) + len(settings.lazy_models) == 1
    return is_alone and cores > 1


@contextmanager
def launched_ahead(settings: WorkerSettings) -> Iterator[None]:
    """Has a process import what an engine needs while the block does, if one is wanted and none is lazy.

    One that nothing has taken by the end of the block, as of an encoder, is ended.
    """
    if settings.models and has_engine_process(settings, cores_here()):
        _ahead.append(_launch())
    try:
        yield
    finally:
        while _ahead:
            end(*_ahead.pop())


def launch() -> Launched:
    """A process that waits for what to load, and ends with this one."""
    return _ahead.pop() if _ahead else _launch()


def end(process: subprocess.Popen[bytes], channel: Channel) -> None:
    """Ends a process, by closing what it waits for or by force, and gives back what it had here."""
    channel.close()
    try:
        process.communicate(timeout=CLOSE_S)  # closes its standard input
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _launch() -> Launched:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", PROGRAM, str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])
    theirs.close()
    return process, Channel(ours)
