"""The validators of `make check` find what they are for. That they are content today is not said here."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "check.py"

BROKEN = {
    "compose files": (
        "docker-compose.yml",
        "services:\n  api:\n    image: x\n    depnds_on: [db]\n",
        "depnds_on",
    ),
    "Dockerfiles": ("infra/docker/x.Dockerfile", "FROM python:latest\n", "DL3007"),
    "YAML": ("docker-compose.yml", "a: 1\na: 2\n", "duplication of key"),
    "shell syntax": ("infra/z.sh", "if true; then\n", "syntax error"),
    "shell scripts": ("infra/z.sh", "#!/bin/sh\nrm -rf $1/bin\n", "SC2086"),
    "Prometheus configuration": (
        "infra/prometheus/local.yml",
        "scrape_configs: [{job_nam: x}]\n",
        "field job_nam not found",
    ),
    "alert rules": (
        "infra/prometheus/z.test.yml",
        "tests: [{promql_expr_test: [{expr: vector(1), eval_time: 0s, exp_samples: []}]}]\n",
        "FAILED",
    ),
}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, looking at an empty place."""
    spec = importlib.util.spec_from_file_location("infra_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "infra_check", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_every_check_has_something_broken_to_find(check):
    assert [one.name for one in check.CHECKS] == list(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_found(check, tmp_path, capsys, name):
    path, content, complaint = BROKEN[name]
    [one] = [one for one in check.CHECKS if one.name == name]
    if check.find(one.command[0]) is None:
        pytest.skip(f"{one.command[0]} is not installed ({one.advice})")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "infra").mkdir(exist_ok=True)
    (tmp_path / "infra" / "a.sh").write_text("true\n")  # sound, and looked at first
    (tmp_path / path).write_text(content)

    assert check.run(one) is False
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert complaint in said


def test_a_kind_of_file_that_has_gone_missing_is_a_failure(check):
    assert check.run(check.CHECKS[0]) is False


def test_a_validator_that_is_absent_is_skipped_by_name(check, tmp_path, capsys):
    (tmp_path / "docker-compose.yml").write_text("services: {}\n")
    absent = check.Check("compose files", ("no-such-program",), ("docker-compose.yml",), "pip install it")
    assert check.run(absent) is None
    assert "SKIPPED: compose files (no-such-program)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('def f():\n    """Of all shards, the first."""\n', "2: a docstring begins with 'Of'"),
        ('"""What is kept."""\n', "1: a docstring begins with 'What'"),
        ("x = [each for each in y]\n", "1: the name 'each' does not say what it holds"),
        ("def f(self, *, of=None): ...\n", "1: the name 'of' does not say what it holds"),
        ("self._found = 1\n", "1: the name 'found' does not say what it holds"),
        ("def asked(): ...\n", "1: the name 'asked' does not say what it holds"),
    ],
)
def test_words_that_a_reader_has_to_guess_at_are_found(check, tmp_path, capsys, source, complaint):
    (tmp_path / "nightshift").mkdir()
    (tmp_path / "nightshift" / "shards.py").write_text(source)

    assert check.check_words() is False
    assert f"nightshift/shards.py:{complaint}\n" in capsys.readouterr().out


def test_plain_words_are_accepted(check, tmp_path, capsys):
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "shards.py").write_text('"""Shards, newest first."""\nfirst_found = offset = 1\n')

    assert check.check_words() is True
    assert "infra: ok: words: 1 files" in capsys.readouterr().out
