"""The supervisor against real processes: shells that sleep, die and ignore what they are told."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.cli.processes.children import (
    AfterExit,
    Child,
    ChildExit,
    Launch,
    RestartBackoff,
    describe_exit,
)
from nightshift.cli.processes.supervisor import LOG_BYTES_MAX, LOG_CHECK_S, Supervisor, run_program
from nightshift.process.exit_codes import CONFIGURATION_EXIT
from tests.helpers.waiting import wait_for

WAIT_S = 100.0  # for something that happens in milliseconds on an idle machine
AT_ONCE = RestartBackoff(first_s=0.0, factor=1.0)


def shell(script: str, name: str = "child", *, log: Path | None = None, **options: Any) -> Child:
    """A shell that finds in $LOG a file to write to."""
    environment = {} if log is None else {"LOG": str(log)}
    return Child(name=name, launch=lambda: Launch(("sh", "-c", script), environment), **options)


FOREVER = "while :; do sleep 0.01; done"
IGNORES_SIGTERM = f"trap '' TERM; echo up >> $LOG; {FOREVER}"


def exits_of(child: Child, count: int = 1, **options: Any) -> list[ChildExit]:
    """The exits of a child that is given up after so many."""
    exits: list[ChildExit] = []

    def on_exit(ended: ChildExit) -> AfterExit:
        exits.append(ended)
        return AfterExit.RESTART if len(exits) < count else AfterExit.GIVE_UP

    supervisor = Supervisor([[child]], **{"on_exit": on_exit, "backoff": AT_ONCE, **options})
    supervisor.start()
    assert supervisor.watch(WAIT_S) is False
    return exits


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def supervise(log: Path) -> Iterator[Callable[..., Supervisor]]:
    """Starts supervisors, waits for a line of their children, and stops what they started."""
    made: list[Supervisor] = []

    def make(*stages: Child | list[Child], until: str = "", **options: Any) -> Supervisor:
        listed = [stage if isinstance(stage, list) else [stage] for stage in stages]
        made.append(Supervisor(listed, **options))
        made[-1].start()
        if until:
            wait_for_line(log, until)
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.stop()


def wait_for_line(path: Path, line: str) -> None:
    """Waits until a child has written this line; a file is all it can signal with."""
    wait_for(
        f"{line!r} in {path}",
        lambda: path.exists() and f"{line}\n".encode() in path.read_bytes(),
        timeout_s=WAIT_S,
    )


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pid: int) -> None:
    wait_for(f"the end of process {pid}", lambda: not is_alive(pid), timeout_s=WAIT_S)


def test_a_child_that_exits_is_reported_with_its_exit_code_and_started_again(log):
    exits = exits_of(shell("echo out; echo err >&2; exit 7", log_path=log.parent / "logs" / "child.log"), 3)

    assert [(ended.returncode, ended.in_a_row) for ended in exits] == [(7, 1), (7, 2), (7, 3)]
    assert len({ended.pid for ended in exits}) == 3
    assert (log.parent / "logs" / "child.log").read_text() == "out\nerr\n" * 3


@pytest.mark.parametrize(("script", "level"), [("exit 0", "INFO"), ("exit 1", "WARNING")])
def test_only_a_child_that_failed_is_warned_of(caplog, script, level):
    caplog.set_level("INFO")
    exits_of(shell(script))

    [(logged, message)] = [
        (record.levelname, record.message)
        for record in caplog.records
        if record.action in ("child_ended", "child_died")
    ]
    assert (logged, message.startswith("child died")) == (level, level == "WARNING")


def test_an_exit_says_how_the_child_ended():
    [killed] = exits_of(shell("kill -9 $$"))
    assert killed.returncode == -signal.SIGKILL
    assert "was ended by SIGKILL" in str(killed)
    assert exits_of(shell(f"exit {CONFIGURATION_EXIT}"))[0].is_configuration


def test_every_start_asks_again_what_to_start():
    starts = iter(range(10))
    child = Child(
        name="numbered",
        launch=lambda: Launch(("sh", "-c", "exit $NUMBER"), {"NUMBER": str(next(starts))}),
    )

    exits = exits_of(child, 3)

    assert [ended.returncode for ended in exits] == [0, 1, 2]
    assert [ended.launch.environment["NUMBER"] for ended in exits] == ["0", "1", "2"]


def test_watching_for_a_while_returns_although_nothing_happened(supervise):
    assert supervise(shell("sleep 60")).watch(0.01) is True


def test_children_stop_stage_by_stage_the_last_one_first_and_how_each_ended_is_told(supervise, log):
    def says(name: str) -> Child:
        stops = f"trap 'echo \"{name} stops\" >> $LOG; exit 3' TERM"
        return shell(f'{stops}; echo "{name} up" >> $LOG; {FOREVER}', name, log=log)

    supervisor = supervise(says("first"), [says("second"), says("second too")], says("third"))
    for name in ("first", "second", "second too", "third"):
        wait_for_line(log, f"{name} up")
    exits = supervisor.stop()

    stops = [line for line in log.read_text().splitlines() if line.endswith("stops")]
    assert stops[0] == "third stops"
    assert set(stops[1:3]) == {"second stops", "second too stops"}
    assert stops[3] == "first stops"
    assert supervisor.pids() == {}
    assert {ended.name: ended.returncode for ended in exits} == dict.fromkeys(
        ("first", "second", "second too", "third"), 3
    )


def test_a_child_that_ignores_sigterm_is_killed_with_what_it_started_when_its_grace_is_over(supervise, log):
    child = shell(f"sleep 600 & echo $! > $LOG; {IGNORES_SIGTERM}", log=log, grace_s=0.05)
    supervisor = supervise(child, until="up")
    pid, grandchild = supervisor.pids()["child"], int(log.read_text().splitlines()[0])

    supervisor.stop()

    assert not is_alive(pid)
    wait_until_dead(grandchild)


def test_asked_twice_it_waits_for_no_grace(supervise, log):
    clock = Clock()
    supervisor = supervise(shell(IGNORES_SIGTERM, log=log, grace_s=3600.0), until="up", clock_s=clock)
    pid = supervisor.pids()["child"]

    supervisor.ask_to_stop()
    supervisor.ask_to_stop()  # the same keystroke, repeated by a shell: not yet impatience
    assert supervisor.watch() is False
    clock.now_s += 5
    supervisor.ask_to_stop()
    supervisor.stop()

    assert not is_alive(pid)


def test_a_child_that_died_while_an_earlier_stage_waits_its_turn_is_not_waited_for(supervise, log):
    go = log.with_name("go")
    first = shell(f"while [ ! -e {go} ]; do sleep 0.01; done; exit 3", "first", grace_s=3600.0)
    touches = f"trap 'touch {go}; sleep 0.2; exit 0' TERM; echo up >> $LOG; {FOREVER}"
    supervisor = supervise(first, shell(touches, "last", log=log, grace_s=3600.0), until="up")

    supervisor.stop()

    assert supervisor.pids() == {}


def test_a_signal_is_passed_on_to_the_children(supervise, log):
    script = f"trap 'echo dumped >> $LOG' USR1; echo up >> $LOG; {FOREVER}"
    supervisor = supervise(shell(script, log=log), until="up")
    with supervisor.signals(forwarded=[signal.SIGUSR1]):
        os.kill(os.getpid(), signal.SIGUSR1)
    wait_for_line(log, "dumped")


def test_sigterm_ends_the_watch_and_the_old_handlers_come_back(supervise):
    before = signal.getsignal(signal.SIGTERM)
    supervisor = supervise(shell("sleep 60"))
    with supervisor.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervisor.watch(WAIT_S) is False
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [("MALLOC_ARENA_MAX", "1", "4"), ("ARROW_DEFAULT_MEMORY_POOL", "system", "mimalloc")],
)
def test_children_have_one_arena_also_for_arrow_unless_the_environment_says_otherwise(
    log, monkeypatch, name, default, other
):
    monkeypatch.delenv(name, raising=False)
    assert variable_of_child(name, log) == default

    monkeypatch.setenv(name, other)
    assert variable_of_child(name, log) == other


def variable_of_child(name: str, log: Path) -> str:
    with log.open("wb") as output:
        run_program(Launch(("sh", "-c", f"echo ${name}")), output).wait()
    return log.read_text().strip()


def test_a_child_keeps_to_its_cores(tmp_path):
    core, log = min(os.sched_getaffinity(0)), tmp_path / "cores.log"
    command = (sys.executable, "-c", "import os; print(os.sched_getaffinity(0))")
    with log.open("wb") as output:
        run_program(Launch(command, cpus=frozenset({core})), output).wait()

    assert log.read_text() == f"{{{core}}}\n"


def test_a_log_that_has_grown_large_is_set_aside_while_its_child_goes_on_writing(supervise, log):
    go = log.with_name("go")
    log.write_bytes(b"\0" * (LOG_BYTES_MAX - 1) + b"\n")
    clock = Clock()
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.01; done; echo after; sleep 600"
    supervisor = supervise(shell(script, log_path=log), until="before", clock_s=clock)

    clock.now_s += LOG_CHECK_S
    supervisor.watch(0.0)
    go.touch()
    wait_for_line(log, "after")

    assert log.read_text() == "after\n"
    assert log.with_name("log.1").read_bytes().endswith(b"\0\nbefore\n")


def test_a_log_that_cannot_be_set_aside_does_not_end_the_watch(supervise, log, caplog):
    log.write_bytes(b"\0" * (LOG_BYTES_MAX + 1))
    log.with_name("log.1").mkdir()  # as a full disk does, it refuses to be written
    clock = Clock()
    supervisor = supervise(shell("sleep 600", log_path=log), clock_s=clock)

    clock.now_s += LOG_CHECK_S
    assert supervisor.watch(0.0) is True

    assert "log not set aside" in caplog.text


def test_a_child_whose_log_cannot_be_written_is_started_all_the_same(tmp_path):
    (tmp_path / "logs").write_text("a file where the directory should be")

    [ended] = exits_of(shell("exit 7", log_path=tmp_path / "logs" / "child.log"))

    assert ended.returncode == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's promise is Linux's")
def test_children_do_not_outlive_a_supervisor_that_is_killed(log):
    program = textwrap.dedent(
        f"""
        from nightshift.cli.processes.children import Child, Launch
        from nightshift.cli.processes.supervisor import Supervisor
        child = Child(name="child", launch=lambda: Launch(("sh", "-c", "echo $$ > {log}; sleep 600")))
        supervisor = Supervisor([[child]])
        supervisor.start()
        supervisor.watch()
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    wait_for("the child's pid", lambda: log.exists() and log.read_text().endswith("\n"))
    child_pid = int(log.read_text())
    assert is_alive(child_pid)

    parent.kill()
    parent.wait()

    wait_until_dead(child_pid)


def test_a_child_that_lived_long_enough_starts_from_the_shortest_wait_again():
    clock = Clock()
    lives_s = iter([1, 1, 61, 1])

    def launch() -> Launch:
        clock.jump_after_next_reading(next(lives_s))  # the reading is the child's birth
        return Launch(("true",))

    exits = exits_of(Child(name="child", launch=launch), 4, clock_s=clock)

    assert [(ended.uptime_s, ended.in_a_row) for ended in exits] == [(1, 1), (1, 2), (61, 1), (1, 2)]


def test_a_death_that_was_not_the_childs_fault_is_not_counted():
    told: list[ChildExit] = []

    def on_exit(ended: ChildExit) -> AfterExit:
        told.append(ended)
        soon = AfterExit.RESTART_SOON
        return [AfterExit.RESTART, soon, soon, AfterExit.GIVE_UP][len(told) - 1]

    exits_of(shell("exit 1"), on_exit=on_exit)

    assert [ended.in_a_row for ended in told] == [1, 2, 2, 2]


def test_a_child_that_is_left_does_not_end_the_others(supervise, log):
    told = threading.Event()

    def on_exit(ended: ChildExit) -> AfterExit:
        told.set()
        return AfterExit.LEAVE

    second = shell("echo up >> $LOG; sleep 600", "second", log=log)
    supervisor = supervise([shell("exit 0", "first"), second], until="up", on_exit=on_exit)
    while not told.is_set():
        assert supervisor.watch(0.01) is True

    assert set(supervisor.pids()) == {"second"}


def test_a_child_that_cannot_be_started_again_is_tried_until_it_can(tmp_path):
    commands = iter([("sh", "-c", "exit 1"), (str(tmp_path / "missing"),), ("sh", "-c", "exit 2")])

    exits = exits_of(Child(name="child", launch=lambda: Launch(next(commands))), 2)

    assert [ended.returncode for ended in exits] == [1, 2]


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exited with 0"),
        (70, "exited with 70"),
        (-11, "was ended by SIGSEGV"),
        (-99, "was ended by signal 99"),
    ],
)
def test_a_return_code_is_told_in_words(returncode, words):
    assert describe_exit(returncode) == words


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._jump_s = 0.0

    def jump_after_next_reading(self, seconds: float) -> None:
        self._jump_s = seconds

    def __call__(self) -> float:
        now_s, self.now_s = self.now_s, self.now_s + self._jump_s
        self._jump_s = 0.0
        return now_s
