"""The supervisor against real processes: shells that sleep, die and ignore what they are told."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

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

WAIT_S = 20.0  # for something that happens in milliseconds on an idle machine
AT_ONCE = RestartBackoff(first_s=0.0, factor=1.0)


class ExitLog:
    """Remembers what it was told, and gives a child up after so many exits."""

    def __init__(self, give_up_after: int) -> None:
        self.told: list[ChildExit] = []
        self._give_up_after = give_up_after

    def __call__(self, ended: ChildExit) -> AfterExit:
        self.told.append(ended)
        return AfterExit.RESTART if len(self.told) < self._give_up_after else AfterExit.GIVE_UP


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervisor]]:
    """Makes supervisors, and stops what they started."""
    made: list[Supervisor] = []

    def make(*stages: Child | list[Child], **options: object) -> Supervisor:
        listed = [stage if isinstance(stage, list) else [stage] for stage in stages]
        made.append(Supervisor(listed, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.stop()


def shell(script: str, name: str = "child", **options: object) -> Child:
    return Child(name=name, launch=lambda: Launch(("sh", "-c", script)), **options)  # type: ignore[arg-type]


def wait_for_line(path: Path, line: str) -> None:
    """Waits until a child has written this line; a file is all it can signal with."""
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if path.exists() and line in path.read_text().splitlines():
            return
        tick.wait(0.01)
    raise TimeoutError(f"{line!r} never appeared in {path}")


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_child_that_exits_is_reported_with_its_exit_code_and_started_again(supervise, tmp_path):
    exits = ExitLog(give_up_after=3)
    supervisor = supervise(shell("exit 7", log_path=tmp_path / "log"), on_exit=exits, backoff=AT_ONCE)

    supervisor.start()
    assert supervisor.watch(WAIT_S) is False

    assert [ended.returncode for ended in exits.told] == [7, 7, 7]
    assert [ended.in_a_row for ended in exits.told] == [1, 2, 3]
    assert len({ended.pid for ended in exits.told}) == 3


@pytest.mark.parametrize(("script", "level"), [("exit 0", "INFO"), ("exit 1", "WARNING")])
def test_only_a_child_that_failed_is_warned_of(supervise, caplog, script, level):
    caplog.set_level("INFO")
    supervisor = supervise(shell(script), on_exit=ExitLog(give_up_after=1))

    supervisor.start()
    assert supervisor.watch(WAIT_S) is False

    [(logged, message)] = [
        (record.levelname, record.message)
        for record in caplog.records
        if record.action in ("child_ended", "child_died")
    ]
    assert (logged, message.startswith("child died")) == (level, level == "WARNING")


def test_a_child_that_is_killed_is_reported_with_the_signal(supervise):
    exits = ExitLog(give_up_after=1)
    supervisor = supervise(shell("kill -9 $$"), on_exit=exits)

    supervisor.start()
    supervisor.watch(WAIT_S)

    assert exits.told[0].returncode == -signal.SIGKILL
    assert "was ended by SIGKILL" in str(exits.told[0])


def test_every_start_asks_again_what_to_start(supervise):
    starts = iter(range(10))
    child = Child(
        name="numbered",
        launch=lambda: Launch(("sh", "-c", "exit $NUMBER"), {"NUMBER": str(next(starts))}),
    )
    exits = ExitLog(give_up_after=3)
    supervisor = supervise(child, on_exit=exits, backoff=AT_ONCE)

    supervisor.start()
    supervisor.watch(WAIT_S)

    assert [ended.returncode for ended in exits.told] == [0, 1, 2]
    assert [ended.launch.environment["NUMBER"] for ended in exits.told] == ["0", "1", "2"]


def test_a_child_that_cannot_run_as_configured_says_so():
    exits = ExitLog(give_up_after=1)
    supervisor = Supervisor([[shell(f"exit {CONFIGURATION_EXIT}")]], on_exit=exits)

    supervisor.start()
    supervisor.watch(WAIT_S)

    assert exits.told[0].is_configuration


def test_watching_for_a_while_returns_although_nothing_happened(supervise):
    supervisor = supervise(shell("sleep 60"))
    supervisor.start()
    assert supervisor.watch(0.01) is True


def test_children_stop_stage_by_stage_the_last_one_first(supervise, tmp_path):
    log = tmp_path / "order"

    def says(name: str) -> Child:
        script = (
            f'trap \'echo "{name} stops" >> {log}; exit 0\' TERM; echo "{name} up" >> {log}; '
            "while :; do sleep 0.01; done"
        )
        return shell(script, name)

    supervisor = supervise(says("first"), [says("second"), says("second too")], says("third"))
    supervisor.start()
    for name in ("first", "second", "second too", "third"):
        wait_for_line(log, f"{name} up")
    supervisor.stop()

    stops = [line for line in log.read_text().splitlines() if line.endswith("stops")]
    assert stops[0] == "third stops"
    assert set(stops[1:3]) == {"second stops", "second too stops"}
    assert stops[3] == "first stops"
    assert supervisor.pids() == {}


def test_a_child_that_ignores_sigterm_is_killed_when_its_grace_is_over(supervise, tmp_path):
    log = tmp_path / "log"
    child = shell(f"trap '' TERM; echo up >> {log}; while :; do sleep 0.01; done", grace_s=0.05)
    supervisor = supervise(child)
    supervisor.start()
    wait_for_line(log, "up")
    pid = supervisor.pids()["child"]

    supervisor.stop()

    assert not is_alive(pid)


def test_killing_a_child_takes_what_it_started_with_it(supervise, tmp_path):
    log = tmp_path / "log"
    script = f"trap '' TERM; sleep 600 & echo $! > {log}; echo up >> {log}; while :; do sleep 0.01; done"
    supervisor = supervise(shell(script, grace_s=0.05))
    supervisor.start()
    wait_for_line(log, "up")
    grandchild = int(log.read_text().splitlines()[0])

    supervisor.stop()

    wait_until_dead(grandchild)


def test_asked_twice_it_waits_for_no_grace(tmp_path):
    log = tmp_path / "log"
    clock = Clock()
    child = shell(f"trap '' TERM; echo up >> {log}; while :; do sleep 0.01; done", grace_s=3600.0)
    supervisor = Supervisor([[child]], clock_s=clock)
    supervisor.start()
    wait_for_line(log, "up")
    pid = supervisor.pids()["child"]

    supervisor.ask_to_stop()
    supervisor.ask_to_stop()  # the same keystroke, repeated by a shell: not yet impatience
    assert supervisor.watch() is False
    clock.now_s += 5
    supervisor.ask_to_stop()
    supervisor.stop()

    assert not is_alive(pid)


def test_a_child_that_died_while_an_earlier_stage_waits_its_turn_is_not_waited_for(supervise, tmp_path):
    log = tmp_path / "log"
    go = tmp_path / "go"
    first = shell(f"while [ ! -e {go} ]; do sleep 0.01; done; exit 3", "first", grace_s=3600.0)
    last = shell(
        f"trap 'touch {go}; sleep 0.2; exit 0' TERM; echo up >> {log}; while :; do sleep 0.01; done",
        "last",
        grace_s=3600.0,
    )
    supervisor = supervise(first, last)
    supervisor.start()
    wait_for_line(log, "up")

    supervisor.stop()

    assert supervisor.pids() == {}


def test_a_signal_is_passed_on_to_the_children(supervise, tmp_path):
    log = tmp_path / "log"
    script = f"trap 'echo dumped >> {log}' USR1; echo up >> {log}; while :; do sleep 0.01; done"
    supervisor = supervise(shell(script))
    with supervisor.signals(forwarded=[signal.SIGUSR1]):
        supervisor.start()
        wait_for_line(log, "up")
        os.kill(os.getpid(), signal.SIGUSR1)
    wait_for_line(log, "dumped")


def test_sigterm_ends_the_watch_and_the_old_handlers_come_back(supervise):
    before = signal.getsignal(signal.SIGTERM)
    supervisor = supervise(shell("sleep 60"))
    with supervisor.signals():
        supervisor.start()
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervisor.watch(WAIT_S) is False
    assert signal.getsignal(signal.SIGTERM) is before


def test_output_goes_to_the_log_file(tmp_path):
    log = tmp_path / "logs" / "child.log"
    supervisor = Supervisor(
        [[shell("echo to stdout; echo to stderr >&2", log_path=log)]], on_exit=ExitLog(give_up_after=1)
    )

    supervisor.start()
    supervisor.watch(WAIT_S)

    assert log.read_text() == "to stdout\nto stderr\n"


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [("MALLOC_ARENA_MAX", "1", "4"), ("ARROW_DEFAULT_MEMORY_POOL", "system", "mimalloc")],
)
def test_children_have_one_arena_also_for_arrow_unless_the_environment_says_otherwise(
    tmp_path, monkeypatch, name, default, other
):
    monkeypatch.delenv(name, raising=False)
    assert variable_of_child(name, tmp_path / "default.log") == default

    monkeypatch.setenv(name, other)
    assert variable_of_child(name, tmp_path / "set.log") == other


def variable_of_child(name: str, log: Path) -> str:
    with log.open("wb") as output:
        run_program(Launch(("sh", "-c", f"echo ${name}")), output).wait()
    return log.read_text().strip()


def test_a_log_that_has_grown_large_is_set_aside_while_its_child_goes_on_writing(supervise, tmp_path):
    log, go = tmp_path / "child.log", tmp_path / "go"
    log.write_bytes(b"\0" * LOG_BYTES_MAX)
    clock = Clock()
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.01; done; echo after; sleep 600"
    supervisor = supervise(shell(script, log_path=log), clock_s=clock)
    supervisor.start()
    while not log.read_bytes().endswith(b"before\n"):
        threading.Event().wait(0.01)

    clock.now_s += LOG_CHECK_S
    supervisor.watch(0.0)
    go.touch()
    wait_for_line(log, "after")

    assert log.read_text() == "after\n"
    assert log.with_name("child.log.1").read_bytes().endswith(b"\0before\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's promise is Linux's")
def test_children_do_not_outlive_a_supervisor_that_is_killed(tmp_path):
    log = tmp_path / "pids"
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
    tick = threading.Event()
    while not (log.exists() and log.read_text().endswith("\n")):
        assert parent.poll() is None
        tick.wait(0.01)
    child_pid = int(log.read_text())
    assert is_alive(child_pid)

    parent.kill()
    parent.wait()

    wait_until_dead(child_pid)


def test_the_wait_before_a_restart_doubles_up_to_its_limit():
    backoff = RestartBackoff(first_s=0.5, factor=2.0, longest_s=30.0)
    delays_s = [backoff.delay_s(exits) for exits in (1, 2, 3, 4, 7, 8, 1_000_000)]
    assert delays_s == [0.5, 1.0, 2.0, 4.0, 30.0, 30.0, 30.0]


def test_a_child_that_lived_long_enough_starts_from_the_shortest_wait_again():
    clock = Clock()
    lives_s = iter([1, 1, 61, 1])

    def launch() -> Launch:
        clock.jump_after_next_reading(next(lives_s))  # the reading is the child's birth
        return Launch(("true",))

    exits = ExitLog(give_up_after=4)
    supervisor = Supervisor(
        [[Child(name="child", launch=launch)]], on_exit=exits, backoff=AT_ONCE, clock_s=clock
    )
    supervisor.start()
    supervisor.watch()

    assert [(ended.uptime_s, ended.in_a_row) for ended in exits.told] == [(1, 1), (1, 2), (61, 1), (1, 2)]


def test_a_death_that_was_not_the_childs_fault_is_not_counted():
    told: list[ChildExit] = []

    def on_exit(ended: ChildExit) -> AfterExit:
        told.append(ended)
        soon = AfterExit.RESTART_SOON
        return [AfterExit.RESTART, soon, soon, AfterExit.GIVE_UP][len(told) - 1]

    supervisor = Supervisor([[shell("exit 1")]], on_exit=on_exit, backoff=AT_ONCE)
    supervisor.start()
    supervisor.watch(WAIT_S)

    assert [ended.in_a_row for ended in told] == [1, 2, 2, 2]


def test_a_child_that_is_left_does_not_end_the_others(supervise, tmp_path):
    log, told = tmp_path / "log", threading.Event()

    def on_exit(ended: ChildExit) -> AfterExit:
        told.set()
        return AfterExit.LEAVE

    first, second = shell("exit 0", "first"), shell(f"echo up >> {log}; sleep 600", "second")
    supervisor = supervise([first, second], on_exit=on_exit)
    supervisor.start()
    wait_for_line(log, "up")
    while not told.is_set():
        assert supervisor.watch(0.01) is True

    assert set(supervisor.pids()) == {"second"}


def test_stopping_tells_how_each_child_ended(supervise, tmp_path):
    log = tmp_path / "log"
    script = f"trap 'exit 3' TERM; echo up >> {log}; while :; do sleep 0.01; done"
    supervisor = supervise(shell(script, "first"))
    supervisor.start()
    wait_for_line(log, "up")

    assert [(ended.name, ended.returncode) for ended in supervisor.stop()] == [("first", 3)]


def test_a_log_that_cannot_be_set_aside_does_not_end_the_watch(supervise, tmp_path, caplog):
    log = tmp_path / "child.log"
    log.write_bytes(b"\0" * (LOG_BYTES_MAX + 1))
    log.with_name("child.log.1").mkdir()  # as a full disk does, it refuses to be written
    clock = Clock()
    supervisor = supervise(shell("sleep 600", log_path=log), clock_s=clock)
    supervisor.start()

    clock.now_s += LOG_CHECK_S
    assert supervisor.watch(0.0) is True

    assert "log not set aside" in caplog.text


def test_a_child_whose_log_cannot_be_written_is_started_all_the_same(tmp_path):
    (tmp_path / "logs").write_text("a file where the directory should be")
    exits = ExitLog(give_up_after=1)
    child = shell("exit 7", log_path=tmp_path / "logs" / "child.log")
    supervisor = Supervisor([[child]], on_exit=exits)

    supervisor.start()
    supervisor.watch(WAIT_S)

    assert exits.told[0].returncode == 7


def test_a_child_that_cannot_be_started_again_is_tried_until_it_can(tmp_path):
    commands = iter([("sh", "-c", "exit 1"), (str(tmp_path / "missing"),), ("sh", "-c", "exit 2")])
    exits = ExitLog(give_up_after=2)
    child = Child(name="child", launch=lambda: Launch(next(commands)))
    supervisor = Supervisor([[child]], on_exit=exits, backoff=AT_ONCE)

    supervisor.start()
    supervisor.watch(WAIT_S)

    assert [ended.returncode for ended in exits.told] == [1, 2]


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


def wait_until_dead(pid: int) -> None:
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if not is_alive(pid):
            return
        tick.wait(0.01)
    raise TimeoutError(f"process {pid} is still there")
