"""A forked process is the one that its command line would have started."""

import os
import signal
import sys
from pathlib import Path

import pytest

from nightshift.cli.processes.children import Launch
from nightshift.cli.processes.supervisor import Process
from tests.faults.kit.forks import fork_server
from tests.faults.kit.processes import children, is_running
from tests.helpers.waiting import wait_for

TELLS = """
import os, sys
print(os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), os.environ['WORD'], sys.argv[2])
"""
STAYS = "import threading; print('stays', flush=True); threading.Event().wait()"
IS_KILLED = "from nightshift.process import failpoints; failpoints.hit('worker.claimed')"
STARTS_ANOTHER = f"""
import sys
from nightshift.cli.processes.children import Launch
from tests.faults.kit.forks import ForkServer
command = (sys.executable, '-P', '-m', 'tests.faults.harness.test_forks', {STAYS!r})
ForkServer.forked().spawn(Launch(command), None).wait()
"""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def run(program: str, output: Path, **environment: str) -> Process:
    command = (sys.executable, "-P", "-m", "tests.faults.harness.test_forks", program, "an argument")
    with output.open("ab") as file:
        return fork_server().spawn(Launch(command, environment), file)


def test_it_is_a_child_in_a_session_of_its_own_with_the_arguments_and_environment_it_was_given(output):
    process = run(TELLS, output, WORD="told")

    assert process.wait() == 0
    mine = [process.pid, os.getpid(), process.pid, os.getcwd(), "told", "an argument"]
    assert output.read_text().strip() == " ".join(map(str, mine))


@pytest.mark.parametrize(
    ("program", "environment", "returncode", "said"),
    [
        ("raise SystemExit(78)", {}, 78, ""),
        ("raise ValueError('no')", {}, 1, "ValueError: no"),
        ("pass", {}, 0, ""),
        (IS_KILLED, {"NIGHTSHIFT_FAILPOINT": "worker.claimed"}, -signal.SIGKILL, ""),
        (IS_KILLED, {}, 0, ""),
    ],
)
def test_its_exit_code_and_its_traceback_are_seen(program, environment, returncode, said, output):
    assert run(program, output, **environment).wait() == returncode
    assert said in output.read_text()


def test_what_it_forks_is_its_child_and_ends_with_it(output):
    parent = run(STARTS_ANOTHER, output)
    wait_for("it has started another", lambda: "stays" in output.read_text())
    (child,) = children(parent.pid)

    parent.send_signal(signal.SIGKILL)
    assert parent.wait() == -signal.SIGKILL

    wait_for("its child has ended, too", lambda: not is_running(child))


if __name__ == "__main__":
    exec(sys.argv[1])
