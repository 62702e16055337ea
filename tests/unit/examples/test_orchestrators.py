"""Files for cron and systemd: times that they read, and a command that `nightshift` takes."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from configparser import ConfigParser
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import typer.main
from cronsim import CronSim

from nightshift.cli.main import app

ORCHESTRATORS = Path(__file__).resolve().parents[3] / "examples" / "orchestrators"
PLACE = "/srv/nightshift"  # of the checkout, in the examples
NOTING = '#!/bin/sh\nprintf "%s\\n" "$@" > "$(dirname "$0")/words"\n'

Started = Callable[[str], list[str]]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Runs a command of the examples in a copy of them; returns the words that `nightshift` was given."""
    program = tmp_path / ".venv" / "bin" / "nightshift"
    program.parent.mkdir(parents=True)
    program.write_text(NOTING)
    program.chmod(0o755)
    (tmp_path / "examples" / "orchestrators").mkdir(parents=True)
    shutil.copy(ORCHESTRATORS / "nightly.sh", tmp_path / "examples" / "orchestrators")

    def start(command: str) -> list[str]:
        subprocess.run(["sh", "-c", command.replace(PLACE, str(tmp_path))], check=True)
        return (program.parent / "words").read_text().splitlines()

    return start


def assert_taken(words: list[str]) -> None:
    """Checks that `nightshift` knows the command and its options."""
    group = typer.main.get_command(app)
    context = group.make_context("nightshift", list(words))
    name, command, rest = group.resolve_command(context, words)  # type: ignore[attr-defined]
    options = command.make_context(name, rest, parent=context).params
    assert (name, options["name"], options["wait"]) == ("run", "nightly", True)
    assert (options["input"], options["output"].rpartition("/2")[0]) == (
        "s3://docs/new/*.parquet",
        "s3://docs/vectors",
    )


def test_crons_line_starts_a_run_that_is_named_and_dated_at_one_every_night(started: Started) -> None:
    lines = (ORCHESTRATORS / "crontab").read_text().splitlines()
    [line] = [line for line in lines if line and not re.match(r"#|[A-Z_]+=", line)]
    *times, command = line.split(maxsplit=5)

    assert CronSim(" ".join(times), dt=_some_day()).explain() == "At 01:00 every day"
    assert "%" not in command.replace(r"\%", "")
    assert_taken(started(command.replace(r"\%", "%")))


def test_systemds_service_starts_the_same_and_the_timer_the_service(started: Started) -> None:
    service, timer = (_unit(f"nightly.{kind}") for kind in ("service", "timer"))

    assert_taken(started(shlex.join(shlex.split(service["Service"]["ExecStart"]))))
    [day, time, zone] = timer["Timer"]["OnCalendar"].split()
    assert (day, time, ZoneInfo(zone).key) == ("*-*-*", "01:00:00", "Europe/Berlin")


def test_systemd_finds_nothing_wrong(started: Started, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    for kind in ("service", "timer"):
        text = (ORCHESTRATORS / f"nightly.{kind}").read_text()
        (tmp_path / f"nightly.{kind}").write_text(text.replace(PLACE, str(tmp_path)))

    ended = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.glob("nightly.*"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in ended.stderr.splitlines() if "nightly" in line] == []


def _some_day() -> datetime:
    return datetime(2026, 11, 28, tzinfo=UTC)


def _unit(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((ORCHESTRATORS / name).read_text())
    return parser
