"""The processes of ranks 1 and up, as rank 0 has them: it starts them, tells them each step, and ends them.

A rank ends with its parent, whose end closes the rank's input. A rank that ends otherwise leaves the others
without an answer: what waits for it is aborted, and from then on everything here raises `RankLost`.
"""

import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from ...core.config import EngineConfig
from ...errors import EngineError, InvalidConfig, RankLost
from ...execution.device.devices import DeviceMemory
from ...execution.parallel.group import Group
from ...execution.step_layout import HostStep
from ..weights import resolve_device

REFUSED_STATUS = 3
"""Exit status of a rank that refuses the model, as the others do then."""
END_S = 10.0
"""Time in which a rank that is told to end does so by itself."""
LOST_S = 5.0
"""Time in which the end of a rank is known after the others could not reach it."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a rank: the model, and where it meets the others."""

    config: EngineConfig
    rank: int
    meeting_point: Path


@dataclass(frozen=True, slots=True)
class NewRunner:
    """Makes KV memory and a runner over it, by rank 0's configuration of the engine."""

    config: EngineConfig
    memory: DeviceMemory | None


@dataclass(frozen=True, slots=True)
class Step:
    """A step, and the number of tokens promised to it, which come after it; None without any."""

    step: HostStep
    num_promised: int | None


@dataclass(frozen=True, slots=True)
class ClearBlocks:
    blocks: list[int]


Message = NewRunner | Step | ClearBlocks


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """The device of a rank. Raises `InvalidConfig`."""
    device, size = resolve_device(config.device), config.tensor_parallel_size
    if device.type != "cuda" or size == 1:
        return device
    if ":" in config.device:
        raise InvalidConfig(f"device {config.device!r} is one of the {size} that tensor_parallel_size needs")
    if (count := torch.cuda.device_count()) < size:
        raise InvalidConfig(f"tensor_parallel_size {size} needs as many CUDA devices, and there are {count}")
    return torch.device("cuda", rank)


@dataclass
class _Processes:
    """State that outlives `Ranks`, for its watchers and its end."""

    directory: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="nightshift-ranks-")
    )
    """The place where ranks meet. They may read it again with their first exchange."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    is_ending: bool = False
    lost: str | None = None
    refused: bool = False
    is_lost: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        self.is_ending = True
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            assert process.stdin is not None, "it was started with one"
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.directory.cleanup()

    def watch(self, rank: int, process: subprocess.Popen[bytes], abort: Callable[[], None]) -> None:
        """Waits for the end of a rank, and aborts what waits for it."""
        status = process.wait()
        if self.is_ending or self.is_lost.is_set():  # the first is the cause of others
            return
        self.refused = status == REFUSED_STATUS
        self.lost = f"rank {rank} (process {process.pid}) ended with status {status}; its log says why"
        self.is_lost.set()
        abort()


class Ranks:
    """The ranks of one model but this process's own, which is rank 0. They end when this is dropped."""

    def __init__(self, config: EngineConfig) -> None:
        """Starts them; they load their parts of the model while rank 0 loads its own."""
        self.num_runners = 0
        """The number of runners made so far. The ranks have the last one alone."""
        self._all = _Processes()
        self._end = weakref.finalize(self, self._all.end)
        size, device = config.tensor_parallel_size, rank_device(config, 0)
        meeting_point = Path(self._all.directory.name) / "met"
        try:
            for rank in range(1, size):
                self._start(Start(config, rank, meeting_point))
            for connection in self._all.connections:
                connection.recv()
            self.group = Group.join(0, size, device, meeting_point)
        except (EOFError, OSError, RuntimeError) as error:
            raise RankLost("a rank ended before it began; its log says why") from error
        for rank, process in enumerate(self._all.processes, 1):
            arguments = (rank, process, self.group.abort)
            threading.Thread(target=self._all.watch, args=arguments, daemon=True).start()

    def _start(self, start: Start) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            program = [
                sys.executable,
                "-P",
                "-m",
                "nightshift_engine.loading.ranks.rank",
                str(theirs.fileno()),
            ]
            # A session of its own: signals of a terminal are for rank 0, which may still have work for it.
            process = subprocess.Popen(
                program, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self._all.processes.append(process)
        self._all.connections.append(Connection(ours.detach()))
        self._all.connections[-1].send(start)

    def send(self, message: Message) -> None:
        """Tells all ranks what is done next."""
        for connection in self._all.connections:
            connection.send(message)

    def check(self) -> None:
        """Raises `RankLost` if a rank has ended: results of the last step may be wrong."""
        if self._all.lost is not None:
            raise RankLost(self._all.lost)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Ends all ranks where the block raises: they are no longer at the same place.

        Raises `RankLost`, or the `EngineError` with which all ranks refuse a model.
        """
        self.check()
        try:
            yield
        except Exception as error:
            is_lost = self._all.is_lost.wait(LOST_S)
            self._all.lost = self._all.lost or f"rank 0 failed: {type(error).__name__}: {error}"
            self._end()
            if isinstance(error, EngineError) and not (is_lost and not self._all.refused):
                raise
            raise RankLost(self._all.lost) from error
