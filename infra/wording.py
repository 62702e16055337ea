"""Refuses docstrings and names that a reader has to guess at: `make check` runs it.

A docstring begins with a verb in the third person or with a noun phrase; a variable says what it holds.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "nightshift",
    "nightshift_engine",
    "api",
    "scheduler",
    "workers",
    "conformance",
    "benchmarks",
    "examples",
    "infra",
    "migrations",
    "tests",
)
OPENINGS = re.compile(
    r"(?:Of|What|That|Those|Likewise|So|Nor|None of|And|Until|Under|By|From|To|In|With|At|On|For)\b"
)
NAMES = frozenset({"found", "each", "asked", "of"})


def main() -> int:
    """Prints every violation; 1 if there is one."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    lines = [f"{path.relative_to(ROOT)}:{line}" for path in paths for line in violations(path.read_text())]
    sys.stdout.writelines(line + "\n" for line in lines[:100])
    if len(lines) > 100:
        sys.stdout.write(f"and {len(lines) - 100} more\n")
    return 1 if lines else 0


def violations(source: str) -> Iterator[str]:
    """Line number and reason of each violation in a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            opening = OPENINGS.match(text) if isinstance(text, str) else None
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


if __name__ == "__main__":
    sys.exit(main())
