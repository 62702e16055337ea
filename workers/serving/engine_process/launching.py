"""Starts and ends the processes of engines. Imports no torch, so that one may start while the worker does."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nightshift.fleet.checkpoints import split_adapters
from nightshift.process.settings import WorkerSettings
from workers.serving.engine_process.channel import Channel

PROGRAM: Final = "workers.serving.engine_process"
CLOSE_S: Final = 10.0
SWITCH_INTERVAL_S: Final = 0.0005
"""Longest wait of an engine's thread, after a kernel's call, for another thread that runs Python."""

Launched = tuple[subprocess.Popen[bytes], Channel]


class EngineDied(Exception):
    """The engine's process has ended by itself."""

    def __init__(self, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.killed_by = -exit_code if exit_code is not None and exit_code < 0 else None
        """The signal that ended it. None: no signal did."""

    @classmethod
    def of_process(cls, exit_code: int) -> "EngineDied":
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with code {exit_code}"
        return cls(f"the engine's process {how}", exit_code)


_ahead: list[Launched] = []
_running: list[subprocess.Popen[bytes]] = []


def kill_all() -> None:
    """Kills every engine's process, for a worker that ends at once: one that is stopped does not see that."""
    for process in _running:
        process.kill()


def has_engine_process(settings: WorkerSettings, cores: int) -> bool:
    """Whether the worker's decoder runs in a process of its own, on a machine with so many cores."""
    models, _ = split_adapters((*settings.models, *settings.lazy_models))
    is_alone = len(models) == 1
    return is_alone and (cores > 1 if settings.engine_process is None else settings.engine_process)


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
    if process in _running:
        _running.remove(process)


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _launch() -> Launched:
    ours, theirs = socket.socketpair()
    # -P: no module of the folder in which the worker was started.
    command = [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])
    theirs.close()
    _running.append(process)
    return process, Channel(ours)
