"""Output of commands: data on standard output, everything else on standard error, one line per error."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer

from nightshift.errors import NightshiftError

EXIT_FAILED = 1


def is_interactive() -> bool:
    """Whether a person is watching: then waiting is shown, otherwise it is silent."""
    return sys.stderr.isatty()


def say(message: str) -> None:
    """A line for the person, not for a script."""
    typer.echo(message, err=True)


def print_json(data: Any) -> None:
    """One JSON document, indented for people, as readable for scripts."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as they need to be; nothing is cut, so that a pipe gets what a terminal shows."""
    cells = [list(headings), *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(line.rstrip())


def print_error(message: str) -> None:
    """What went wrong, as one line on standard error."""
    say(f"nightshift: {' '.join(message.split())}")


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """One line on standard error, and out."""
    print_error(message)
    raise SystemExit(code)


def describe(error: NightshiftError) -> str:
    """An error as one line, with the field it is about in front, unless the message itself names it."""
    is_named = error.param is None or f"'{error.param}'" in error.message
    return error.message if is_named else f"{error.param}: {error.message}"
