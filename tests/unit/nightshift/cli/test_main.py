import errno
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from nightshift.cli.admin import keys
from nightshift.cli.main import main
from nightshift.process.exit_codes import CONFIGURATION_EXIT

COMMANDS = [
    ("up",),
    ("worker",),
    ("run",),
    ("doctor",),
    ("top",),
    *(("jobs", name) for name in ("list", "show", "cancel", "delete", "events", "results")),
    *(("schedules", name) for name in ("apply", "list", "show", "pause", "resume", "run-now", "history")),
    ("schedules", "delete"),
    *(("keys", name) for name in ("create", "list", "revoke")),
    *(("webhooks", name) for name in ("secret", "list", "add", "rotate", "test", "deliveries", "replay")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_is_in_the_help(nightshift, command):
    ended = nightshift(*command, "--help")
    assert ended.code == 0
    assert f"nightshift {' '.join(command)}" in ended.out
    assert command[0] in nightshift("--help").out


@pytest.mark.parametrize("columns", [80, 100])
def test_help_flows_and_loses_nothing(nightshift, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = nightshift("run", "--help").out.splitlines()
    out = " ".join(" ".join(lines).split())
    assert "[default: today]" in out
    assert "<bool>" not in out
    told = lines[lines.index("Options:") - 12 : lines.index("Arguments:")]
    paragraph = [line for line in told if line.startswith("  ")][1:]
    assert all(len(line) > 60 for line in paragraph[:-1]), "no line of a paragraph ends early"


def test_the_version_is_printed(nightshift):
    ended = nightshift("--version")
    assert ended.code == 0
    assert ended.out.startswith("nightshift 0.")


@pytest.mark.parametrize(
    "command", [("nonsense",), ("jobs", "nonsense"), ("up", "--nonsense"), ("jobs", "show")]
)
def test_what_makes_no_sense_ends_with_2(nightshift, command):
    assert nightshift(*command).code == 2


def test_what_is_wrong_with_an_option_is_said_in_plain_words(nightshift):
    err = nightshift("jobs", "list", "--created-after", "noon").err
    assert "Invalid value for '--created-after': 'noon' does not match the formats" in err


def test_looking_at_the_help_loads_nothing_heavy():
    heavy = [
        "sqlalchemy",
        "httpx",
        "celery",
        "pydantic",
        "boto3",
        "torch",
        "fastapi",
        "rich.progress",
        "yaml",
    ]
    program = f"import sys, nightshift.cli.main; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [("up",), ("worker",), ("worker", "--model", "demo"), ("doctor",)])
def test_a_setting_that_makes_no_sense_is_one_line_and_nothing_is_started(
    nightshift, monkeypatch, data_dir, command
):
    monkeypatch.setenv("NIGHTSHIFT_SPOT_PROVIDER", "ibm")
    monkeypatch.setattr("nightshift.cli.processes.supervisor.Supervisor.start", pytest.fail)

    ended = nightshift(*command)

    assert (ended.code, ended.out) == (CONFIGURATION_EXIT, "")
    assert ended.err == (
        "nightshift: NIGHTSHIFT_SPOT_PROVIDER is 'ibm': "
        "it should be 'auto', 'aws', 'gcp', 'azure' or 'none'\n"
    )
    assert not data_dir.exists()


@pytest.mark.parametrize("command", ["up", "worker", "doctor"])
def test_leases_that_cannot_be_kept_are_one_line_too(nightshift, monkeypatch, command):
    monkeypatch.setenv("NIGHTSHIFT_LEASE_TTL_S", "10")

    ended = nightshift(command)

    assert (ended.code, ended.err.count("\n")) == (CONFIGURATION_EXIT, 1)
    assert "NIGHTSHIFT_LEASE_TTL_S must hold, and they are 5, 20 and 10" in ended.err


@pytest.mark.parametrize(
    "command",
    [
        *(("workers", "list"), ("workers", "drain", "wrk_1"), ("worker", "--check")),
        *(("keys", "list"), ("keys", "create")),
    ],
    ids=" ".join,
)
def test_looking_for_an_installation_makes_none(nightshift, data_dir, command):
    ended = nightshift(*command)

    assert ended.code == 1
    assert ended.err.startswith(f"nightshift: no installation in {data_dir}: `nightshift up` makes one; ")
    assert not data_dir.exists()


def test_a_database_by_url_is_not_made_by_looking_either(nightshift, monkeypatch, tmp_path):
    path = tmp_path / "elsewhere.db"
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", f"sqlite:///{path}")
    monkeypatch.setenv("NIGHTSHIFT_MODELS", "/nowhere")  # so that doctor imports no torch

    for command, said in (
        (("workers", "list"), "no installation in NIGHTSHIFT_DATABASE_URL"),
        (("doctor",), ""),
    ):
        ended = nightshift(*command)
        assert (ended.code, path.exists()) == (1, False)
        assert said in ended.err


def test_of_a_database_server_that_is_away_it_is_said_where_it_is_named(nightshift, monkeypatch):
    away = "postgresql://x@127.0.0.1:1/x?connect_timeout=2"
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", away)

    ended = nightshift("workers", "list")

    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.err.endswith("; is it running? NIGHTSHIFT_DATABASE_URL says where\n")


def test_what_the_clients_commands_load_is_installed_without_extras():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    base = set(map(_name, project["dependencies"]))
    extras = {
        _name(requirement) for group in project["optional-dependencies"].values() for requirement in group
    }
    code = (
        "import sys, nightshift.client, nightshift.process.settings, nightshift.cli.session, "
        "nightshift.cli.bulk.requests_of_rows, nightshift.cli.schedules.plan_files; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    owners = metadata.packages_distributions()
    used = {owner for name in loaded.split() for owner in owners.get(name, ())}
    assert "httpx" in used
    assert used & (extras - base - {"nightshift"}) == set()


def _name(requirement: str) -> str:
    return Requirement(requirement).name


def test_a_command_whose_packages_are_not_installed_says_how_to_install_them(nightshift, monkeypatch):
    def without_sqlalchemy(**_: Any) -> None:
        raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")

    monkeypatch.setattr("nightshift.cli.main.app", without_sqlalchemy)
    ended = nightshift("keys", "list")

    assert ended.code == 1
    assert ended.err.startswith("nightshift: this command needs sqlalchemy, which is not installed")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "run this as the user that runs the service"),
        (errno.EROFS, "name a directory that can be written to"),
        (errno.ENOSPC, "make room there"),
    ],
)
def test_what_the_operating_system_refuses_is_a_line_with_the_path_and_the_next_step(
    nightshift, monkeypatch, number, advice
):
    def refused(data_dir: Path | None) -> None:
        raise OSError(number, os.strerror(number), "/srv/data/nightshift.db")

    monkeypatch.setattr(keys, "operator_store", refused)
    ended = nightshift("keys", "list")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"nightshift: /srv/data/nightshift.db: {os.strerror(number)}: {advice}")
    assert ended.err.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback(nightshift, monkeypatch):
    def broken(data_dir: Path | None) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(keys, "operator_store", broken)
    with pytest.raises(OSError, match="Bad file descriptor"):
        main(["keys", "list"])


def test_a_key_of_another_user_is_not_called_missing(nightshift, data_dir, monkeypatch):
    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_text", refused)
    ended = nightshift("jobs", "list")
    assert ended.code == 1
    assert f"the API key in {data_dir / 'api_key'} is for another user of this machine" in ended.err


def test_a_database_file_that_cannot_be_opened_is_named(nightshift, data_dir):
    path = data_dir / "nightshift.db"
    path.parent.mkdir(parents=True)
    path.touch()
    (data_dir / f"{path.name}-wal").mkdir()
    ended = nightshift("keys", "list")
    assert ended.code == 1
    assert "see that this user may write to the database's file and to its folder" in ended.err
    assert ended.err.endswith(f" ({path})\n")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
@pytest.mark.parametrize("command", [("up", "--port", "0"), ("keys", "list")], ids=" ".join)
def test_a_database_that_is_no_file_is_named_in_the_directory_that_was_chosen(
    nightshift, tmp_path, make, command
):
    path = tmp_path / "chosen" / "nightshift.db"
    path.parent.mkdir(mode=0o700)
    make(path)
    ended = nightshift(*command, "--data-dir", str(path.parent))
    assert ended.code == CONFIGURATION_EXIT
    [line] = ended.err.splitlines()
    assert line.startswith(f"nightshift: {path} is a ")
    assert "move it away, or name a file in NIGHTSHIFT_DATABASE_URL" in line
