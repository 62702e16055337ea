"""Processes that are kept running, as a container orchestrator would, and can be killed, paused and stopped.

Nothing here knows what runs in them.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.cli.processes.children import AfterExit, Child, ChildExit, Launch, RestartBackoff
from nightshift.cli.processes.supervisor import Spawn, Supervisor, run_program
from tests.faults.kit.forks import is_server
from tests.helpers.waiting import TICK_S, WAIT_MAX_S, wait_for

RESTART: Final = RestartBackoff(first_s=0.1, factor=1.0)  # at once, however often it dies


@dataclass(frozen=True)
class Footprint:
    """Memory, files and threads of a process."""

    pid: int
    rss_bytes: int
    open_files: int

    @classmethod
    def of_process(cls, pid: int) -> "Footprint | None":
        """None: it has gone."""
        process = Path("/proc") / str(pid)
        try:
            pages = int((process / "statm").read_text().split()[1])
            return cls(pid, pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(process / "fd")))
        except OSError:
            return None


class Kept:
    """One process, started again whenever it dies until it is told to stop."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        grace_s: float,
        on_exit: Callable[[ChildExit], None],
        spawn: Spawn = run_program,
    ) -> None:
        self.name = name
        self.log_path = log_path
        launch = Launch(tuple(command), environment)
        self._child = Child(name=name, launch=lambda: launch, grace_s=grace_s, log_path=log_path)
        self._on_exit = on_exit
        self._spawn = spawn
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns when the process is there; what it says of itself is another matter."""
        assert self._thread is None, f"{self.name} runs already"
        self._supervisor = Supervisor(
            [[self._child]], on_exit=self._handle, backoff=RESTART, spawn=self._spawn
        )
        self._ended: dict[str, int] = {}
        started = threading.Event()
        # The kernel ends a child with the thread that started it, so one thread does all of it.
        self._thread = threading.Thread(target=self._keep, args=(started,), name=self.name, daemon=True)
        self._thread.start()
        started.wait(WAIT_MAX_S)

    def stop(self) -> int | None:
        """SIGTERM, and SIGKILL after its grace. Returns its exit code; None if it was dead just then."""
        assert self._thread is not None, f"{self.name} does not run"
        self._supervisor.ask_to_stop()
        self._thread.join()
        self._thread = None
        return self._ended.get(self.name)

    def kill_and_stop(self) -> None:
        """Ends it for good without asking; what it has started ends with it."""
        self._supervisor.ask_to_stop()
        while self._thread is not None and self._thread.is_alive():
            self._supervisor.pass_on(signal.SIGKILL)
            self._thread.join(TICK_S)
        self._thread = None

    @property
    def is_kept(self) -> bool:
        return self._thread is not None

    @property
    def pid(self) -> int | None:
        """None: it has died, and will be started again."""
        return self._supervisor.pids().get(self.name) if self.is_kept else None

    def _keep(self, started: threading.Event) -> None:
        self._supervisor.start()
        started.set()
        self._supervisor.watch()
        self._ended = {ended.name: ended.returncode for ended in self._supervisor.stop()}

    def _handle(self, ended: ChildExit) -> AfterExit:
        self._on_exit(ended)
        return AfterExit.RESTART


def send(pid: int, number: int) -> bool:
    """Sends a signal. False: the process has gone meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_running(pid: int) -> bool:
    """Whether there is such a process that is more than a line in its parent's books."""
    return (fields := _stat(pid)) is not None and fields[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect."""
    return (fields := _stat(pid)) is not None and fields[0] == "T"


def children(pid: int) -> list[int]:
    """The processes a process has started: each of its threads has its own."""
    started: list[int] = []
    with suppress(OSError):  # it ends just now
        for thread in Path(f"/proc/{pid}/task").iterdir():
            started += map(int, (thread / "children").read_text().split())
    return [child for child in started if is_running(child) and not is_server(child)]


def _stat(pid: int) -> list[str] | None:
    """State, parent, and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def pause(pid: int) -> None:
    """SIGSTOP, and wait until it has taken effect."""
    send(pid, signal.SIGSTOP)
    wait_for(f"process {pid} is stopped", lambda: is_stopped(pid) or not is_running(pid))


def resume(pid: int) -> None:
    send(pid, signal.SIGCONT)
