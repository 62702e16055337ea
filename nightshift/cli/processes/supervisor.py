"""Starts programs in order, restarts them after an exit, and stops them in reverse.

On Linux the kernel kills the children when this process ends. That promise is about the thread that started
them, so call `start`, `watch` and `stop` from one thread that lives as long as they do. `ask_to_stop` is safe
anywhere.
"""

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Final, Protocol

from nightshift.cli.processes.children import (
    AfterExit,
    Child,
    ChildExit,
    Launch,
    OnExit,
    RestartBackoff,
    restart_always,
)
from nightshift.process import memory
from nightshift.process.exit_codes import HURRY_AFTER_S, SIGNAL_EXIT_BASE

log = logging.getLogger(__name__)

LOG_BYTES_MAX: Final = 16 * 1024 * 1024  # a larger log is copied to `.1`, replacing the last copy
LOG_CHECK_S: Final = 30.0
KILL_WAIT_S: Final = 5.0  # between SIGKILLs of a process that the kernel is slow to end


class Process(Protocol):
    """The part of `subprocess.Popen` in use."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int: ...  # once `wait` has returned

    def wait(self) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...


Spawn = Callable[[Launch, IO[bytes] | None], Process]


def run_program(launch: Launch, output: IO[bytes] | None) -> Process:
    """Runs a command line. `output` None: our own output."""
    return subprocess.Popen(
        launch.command,
        env={**memory.ENVIRONMENT, **os.environ, **launch.environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,  # Ctrl-C reaches only us; we stop the children in order
        preexec_fn=_before_exec(launch.cpus),
    )


class Supervisor:
    """Children in stages. A stage starts together, after the stage before it, and stops together."""

    def __init__(
        self,
        stages: Sequence[Sequence[Child]],
        *,
        on_exit: OnExit = restart_always,
        backoff: RestartBackoff = RestartBackoff(),
        clock_s: Callable[[], float] = time.monotonic,
        spawn: Spawn = run_program,
    ) -> None:
        """`on_exit` is called for every exit during `watch` and decides what follows."""
        self._stages = [[_Running(child) for child in stage] for stage in stages]
        self._on_exit = on_exit
        self._backoff = backoff
        self._clock_s = clock_s
        self._spawn = spawn
        # Signal handlers put items here; SimpleQueue is reentrant, Queue is not.
        self._exits: SimpleQueue[_Exit | None] = SimpleQueue()
        self._stop_asked_at_s: float | None = None
        self._hurry_asked = False
        self._logs_checked_at_s = clock_s()

    @property
    def stop_asked(self) -> bool:
        """Whether `watch` has ended or is about to."""
        return self._stop_asked_at_s is not None

    def pids(self) -> dict[str, int]:
        """The running children."""
        return {r.child.name: r.process.pid for r in self._all() if r.process is not None}

    def start(self) -> None:
        for running in self._all():
            self._start(running)

    def watch(self, for_s: float | None = None) -> bool:
        """Keeps the children running for this long (None: until asked to stop).

        Returns False when it is time to `stop`: on request, or because `on_exit` gave a child up.
        """
        ends_at_s = None if for_s is None else self._clock_s() + for_s
        while not self.stop_asked:
            now_s = self._clock_s()
            for running in self._all():
                if running.restart_at_s is not None and running.restart_at_s <= now_s:
                    self._start_again(running)
            if now_s >= self._logs_checked_at_s + LOG_CHECK_S:
                self._logs_checked_at_s = now_s
                self._set_large_logs_aside()
            if ends_at_s is not None and now_s >= ends_at_s:
                return True
            exit = self._next_exit(ends_at_s)
            if exit is not None:
                self._handle(exit)
        return False

    def stop(self) -> Sequence[ChildExit]:
        """Ends every child, the last stage first, with SIGTERM and after its grace SIGKILL.

        Returns the exits of those still running. May be called again.
        """
        ended: list[ChildExit] = []
        self._stop_asked_at_s = self._stop_asked_at_s or self._clock_s()
        for stage in reversed(self._stages):
            for running in stage:
                running.restart_at_s = None
                if running.process is not None:
                    running.process.send_signal(signal.SIGTERM)
            ended += self._wait_for(stage)
        return ended

    def ask_to_stop(self) -> None:
        """Lets `watch` return. A second call after `HURRY_AFTER_S` ends every grace period at once."""
        now_s = self._clock_s()
        if self._stop_asked_at_s is None:
            self._stop_asked_at_s = now_s
        elif now_s >= self._stop_asked_at_s + HURRY_AFTER_S:
            self._hurry_asked = True
        self._exits.put(None)

    def pass_on(self, signal_number: int) -> None:
        for running in self._all():
            if running.process is not None:
                running.process.send_signal(signal_number)

    @contextmanager
    def signals(self, forwarded: Sequence[int] = ()) -> Iterator[None]:
        """Lets SIGTERM, SIGINT and SIGHUP ask to stop while the block runs; `forwarded` signals go to the
        children.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            self.ask_to_stop()

        def forward(number: int, frame: FrameType | None) -> None:
            self.pass_on(number)

        handlers = dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), stop)
        handlers |= dict.fromkeys(map(signal.Signals, forwarded), forward)
        # Under nohup, SIGHUP stays ignored.
        handlers = {n: h for n, h in handlers.items() if signal.getsignal(n) is not signal.SIG_IGN}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _all(self) -> "Iterator[_Running]":
        return (running for stage in self._stages for running in stage)

    def _start_again(self, running: "_Running") -> None:
        """Starts a child; a failed start is retried, since memory or disk may be short for a moment."""
        try:
            self._start(running)
        except OSError as error:
            running.exits_in_a_row += 1
            running.restart_at_s = self._clock_s() + self._backoff.delay_s(running.exits_in_a_row)
            log.warning(
                "child not started: %s",
                error,
                extra={"action": "child_not_started", "child": running.child.name},
            )

    def _start(self, running: "_Running") -> None:
        running.restart_at_s = None
        running.launch = running.child.launch()
        running.started_at_s = self._clock_s()
        with _output(running.child.log_path) as output:
            running.process = self._spawn(running.launch, output)
        log.info(
            "child started",
            extra={"action": "child_started", "child": running.child.name, "pid": running.process.pid},
        )
        threading.Thread(
            target=self._await_exit,
            args=(_Exit(running, running.process),),
            name=f"wait-{running.child.name}",
            daemon=True,
        ).start()

    def _await_exit(self, exit: "_Exit") -> None:
        exit.process.wait()
        self._exits.put(exit)

    def _next_exit(self, ends_at_s: float | None) -> "_Exit | None":
        """Waits for an exit, at most until the next thing due."""
        times_s = [self._logs_checked_at_s + LOG_CHECK_S]
        times_s += [r.restart_at_s for r in self._all() if r.restart_at_s is not None]
        times_s += [ends_at_s] if ends_at_s is not None else []
        with suppress(Empty):
            return self._exits.get(timeout=max(0.0, min(times_s) - self._clock_s()))
        return None

    def _set_large_logs_aside(self) -> None:
        for running in self._all():
            path = running.child.log_path
            try:
                if path is not None and path.exists() and path.stat().st_size > LOG_BYTES_MAX:
                    set_aside(path)
            except OSError as error:  # most likely a full disk: the child matters more than its log
                log.warning(
                    "log not set aside: %s",
                    error,
                    extra={"action": "log_not_set_aside", "child": running.child.name},
                )

    def _handle(self, exit: "_Exit") -> None:
        running = exit.running
        ended = self._ended(exit)
        if ended.was_requested:  # another process asked for it
            log.info("child ended: %s", ended, extra={"action": "child_ended", "child": ended.name})
        else:
            log.warning("child died: %s", ended, extra={"action": "child_died", "child": ended.name})
        match self._on_exit(ended):
            case AfterExit.RESTART:
                running.exits_in_a_row = ended.in_a_row
                running.restart_at_s = self._clock_s() + self._backoff.delay_s(ended.in_a_row)
            case AfterExit.RESTART_SOON:
                running.restart_at_s = self._clock_s() + self._backoff.first_s
            case AfterExit.LEAVE:
                pass
            case AfterExit.GIVE_UP:
                self._stop_asked_at_s = self._clock_s()

    def _ended(self, exit: "_Exit") -> ChildExit:
        running = exit.running
        running.process = None
        uptime_s = self._clock_s() - running.started_at_s
        was_stable = uptime_s >= self._backoff.stable_after_s
        return ChildExit(
            name=running.child.name,
            pid=exit.process.pid,
            launch=running.launch,
            returncode=exit.process.returncode,
            uptime_s=uptime_s,
            in_a_row=1 if was_stable else running.exits_in_a_row + 1,
        )

    def _wait_for(self, stage: "Sequence[_Running]") -> Sequence[ChildExit]:
        ended: list[ChildExit] = []
        alive = {running.process: running for running in stage if running.process is not None}
        asked_at_s = self._clock_s()
        while alive:
            deadlines_s = [asked_at_s + running.child.grace_s for running in alive.values()]
            if self._hurry_asked or min(deadlines_s) <= self._clock_s():
                self._kill_overdue(alive, asked_at_s)
            with suppress(Empty):
                exit = self._exits.get(timeout=max(0.0, min(deadlines_s) - self._clock_s()) or KILL_WAIT_S)
                if exit is not None:  # a child of this stage, or of a later one, ended early
                    alive.pop(exit.process, None)
                    ended.append(self._ended(exit))
                    log.info(
                        "child stopped: %s",
                        ended[-1],
                        extra={"action": "child_stopped", "child": ended[-1].name},
                    )
        return ended

    def _kill_overdue(self, alive: "Mapping[Process, _Running]", asked_at_s: float) -> None:
        for process, running in alive.items():
            if self._hurry_asked or asked_at_s + running.child.grace_s <= self._clock_s():
                grace_s = running.child.grace_s
                log.warning(
                    "child killed: %s",
                    "a second signal came" if self._hurry_asked else f"it did not stop in {grace_s:.0f} s",
                    extra={"action": "child_killed", "child": running.child.name},
                )
                _kill_group(process)


@dataclass(eq=False)
class _Running:
    """A child and its present process."""

    child: Child
    process: Process | None = None
    launch: Launch = field(default_factory=lambda: Launch(()))  # the latest one
    started_at_s: float = 0.0
    exits_in_a_row: int = 0
    restart_at_s: float | None = None  # None: it runs, or it is not restarted


@dataclass(frozen=True)
class _Exit:
    running: _Running
    process: Process


@contextmanager
def _output(log_path: Path | None) -> Iterator[IO[bytes] | None]:
    """A child's log file; None for our own output, also when the log cannot be opened."""
    with ExitStack() as stack:
        file = None
        if log_path is not None:
            try:
                log_path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(log_path.open("ab"))
            except OSError as error:
                log.warning("no log: %s", error, extra={"action": "no_log", "path": str(log_path)})
        yield file


def set_aside(log_path: Path) -> None:
    """Copy a log to `.1` and truncate it while its child writes on.

    The child appends, so it continues at the new end. Output during the copy may be lost.
    """
    shutil.copyfile(log_path, log_path.with_name(log_path.name + ".1"))
    os.truncate(log_path, 0)


def _kill_group(process: Process) -> None:
    """Sends SIGKILL to the child's session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _before_exec(cpus: frozenset[int]) -> Callable[[], None] | None:
    """The child keeps to its cores, and asks the kernel to kill it when this process ends.

    Everything is looked up here, in the parent: between fork and exec only the calls themselves are made.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent_pid = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if cpus:
            os.sched_setaffinity(0, cpus)
        if os.getppid() != parent_pid:  # this process ended before the call
            os._exit(SIGNAL_EXIT_BASE + signal.SIGKILL)

    return ask


_PR_SET_PDEATHSIG: Final = 1
