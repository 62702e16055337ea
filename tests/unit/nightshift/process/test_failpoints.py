"""A process told to die at a named point dies there, at once and without a word more; any other passes by."""

import ast
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from nightshift.process import failpoints
from nightshift.process.failpoints import FAILPOINT, FAILPOINT_DIR, FAILPOINT_LOG, NAMES, from_environment

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("nightshift", "nightshift_engine", "api", "scheduler", "workers")

# Says how often it has come by, and cleans up only if it is let.
PASSES_BY = """
import sys
from nightshift.process import failpoints
try:
    for times in range(1, 4):
        failpoints.hit("worker.claimed")
        print(times, flush=True)
        sys.stdin.readline()
finally:
    print("cleaned up")
"""


def process(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PASSES_BY],
        env={"PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_being_asked_it_is_a_function_that_does_nothing() -> None:
    assert from_environment({}) is from_environment({FAILPOINT: "", FAILPOINT_DIR: ""})
    assert failpoints.hit is from_environment({})


@pytest.mark.parametrize(
    ("environment", "passed", "dies"),
    [
        ({}, ["1", "2", "3", "cleaned", "up"], False),
        ({FAILPOINT: "worker.received"}, ["1", "2", "3", "cleaned", "up"], False),
        ({FAILPOINT: "worker.claimed"}, [], True),
        ({FAILPOINT: "worker.claimed:3"}, ["1", "2"], True),
    ],
    ids=["none", "another", "the first time", "the third time"],
)
def test_a_process_dies_at_the_point_it_was_started_with_and_at_no_other(
    environment: dict[str, str], passed: list[str], dies: bool
) -> None:
    child = process(**environment)

    said, complaint = child.communicate("\n\n\n", timeout=30)

    assert child.returncode == (-signal.SIGKILL if dies else 0)
    assert said.split() == passed  # of one that dies, nothing is cleaned up
    assert complaint == ("failpoint worker.claimed: this process kills itself\n" if dies else "")


def test_a_point_is_armed_while_the_process_runs(tmp_path: Path) -> None:
    dying = process(**{FAILPOINT_DIR: str(tmp_path)})
    assert dying.stdout is not None
    assert dying.stdout.readline() == "1\n"

    (tmp_path / "worker.claimed").touch()
    said, _ = dying.communicate("\n\n", timeout=30)

    assert (dying.returncode, said) == (-signal.SIGKILL, "")


def test_one_process_of_several_dies_of_an_armed_point(tmp_path: Path) -> None:
    (tmp_path / "worker.claimed").touch()
    several = [process(**{FAILPOINT_DIR: str(tmp_path)}) for _ in range(3)]

    for one in several:
        one.communicate("\n\n\n", timeout=30)

    assert Counter(one.returncode for one in several) == {-signal.SIGKILL: 1, 0: 2}
    assert not list(tmp_path.iterdir())


def test_passing_a_failpoint_may_be_logged_without_ending_the_process(tmp_path: Path) -> None:
    log = tmp_path / "points.log"
    before_ns = time.monotonic_ns()

    for _ in range(2):
        said, _ = process(**{FAILPOINT_LOG: str(log)}).communicate("\n\n\n", timeout=30)
        assert said.split() == ["1", "2", "3", "cleaned", "up"]

    times, names = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
    assert names == ("worker.claimed",) * 6
    assert [before_ns, *map(int, times)] == sorted([before_ns, *map(int, times)])


@pytest.mark.parametrize("wanted", ["worker.nowhere", "worker.claimed:", "worker.claimed:soon", ":3"])
def test_what_is_no_point_is_refused_at_the_start(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"want name or name:n"):
        from_environment({FAILPOINT: wanted})


def test_every_point_is_in_the_code_and_the_code_hits_no_other() -> None:
    hit = {
        name for package in PACKAGES for file in (ROOT / package).rglob("*.py") for name in points_in(file)
    }

    # Between two lines of Celery's, where only a test can put it.
    assert hit == set(NAMES) - {"worker.fetched"}


def points_in(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if "failpoints" not in text:
        return []
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        ast.literal_eval(call.args[0])
        for call in calls
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "failpoints.hit"
    ]


def test_every_point_is_explained_to_operators() -> None:
    page = (ROOT / "docs" / "failpoints.md").read_text(encoding="utf-8")

    assert not [
        name for name in NAMES if f"`{name}`" not in page and f"`.{name.partition('.')[2]}`" not in page
    ]
