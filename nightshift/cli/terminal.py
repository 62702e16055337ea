"""Output of commands: data on standard output, the rest on standard error, one line per error."""

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar

import typer

from nightshift.errors import NightshiftError

EXIT_FAILED = 1
EXIT_USAGE = 2  # as typer has it

Item = TypeVar("Item")
MARKS_MAX: Final = 2  # combining ones on a letter: no language stacks more
NO_TEXT: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # classes of characters that act


def is_interactive() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


def say(message: str) -> None:
    """Prints a line on standard error."""
    typer.echo(message, err=True)


def printable(text: str) -> str:
    """The text without what acts on a terminal: control characters, escape sequences, reversed writing, line
    ends, piles of accents. Each is shown as U+FFFD; a tab as a space.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for character in unicodedata.normalize("NFC", text.replace("\t", " ")):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if marks > MARKS_MAX:
            continue
        shown.append("\ufffd" if kind in NO_TEXT else character)
    return "".join(shown)


def print_json(data: Any) -> None:
    """Prints JSON. Characters that would act on a terminal are written as escapes, which mean the same."""
    text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
    typer.echo("".join(map(_escaped, text)) if not text.isascii() else text)


def print_json_line(data: Any) -> None:
    """Prints JSON on one line, likewise."""
    typer.echo("".join(map(_escaped, json.dumps(data, ensure_ascii=False, default=str))))


def _escaped(character: str) -> str:
    acts = not character.isascii() and unicodedata.category(character) in NO_TEXT
    return json.dumps(character)[1:-1] if acts else character


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints columns without cutting them, so that a pipe gets what a terminal shows: no cell acts on it."""
    cells = [
        list(headings),
        *([("" if cell is None else printable(str(cell))) for cell in row] for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(line.rstrip())


def print_list(
    items: Sequence[Item],
    headings: Sequence[str],
    row: Callable[[Item], Sequence[object]],
    *,
    json: bool,
    as_json: Callable[[Item], Any] = lambda item: item,
) -> None:
    """Prints a list as a table, or all of it as JSON."""
    if json:
        print_json([as_json(item) for item in items])
    else:
        print_table(headings, map(row, items))


def print_fields(
    data: Mapping[str, Any], text: Callable[[str, Any], str], left_out: Collection[str] = ("object",)
) -> None:
    """Prints an object's fields that have a value, a line each. `text`: of a field's name and value."""
    for name, value in data.items():
        if name not in left_out and value not in (None, [], {}):
            typer.echo(f"{name + ':':<20} {text(name, value)}")


def value_text(name: str, value: Any) -> str:
    """A field's value: a time, a text, or JSON."""
    if name.endswith("_at") and isinstance(value, int):
        return time_text(value)
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def print_change(data: Any, message: str, *, as_json: bool) -> None:
    """Prints what was changed as JSON, or a line about it on standard error."""
    if as_json:
        print_json(data)
    else:
        say(printable(message))


def print_error(message: str) -> None:
    """Prints an error as one line."""
    say(f"nightshift: {' '.join(message.split())}")


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    print_error(message)
    raise SystemExit(code)


def rows_text(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def utc_text(at: datetime | None) -> str | None:
    """A time as JSON output has it."""
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def time_text(at_s: int) -> str:
    """Seconds since the epoch as a time, UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}Z"


def output_problem_text(problem: dict[str, Any]) -> str:
    """A job's `output_problem` in a line."""
    message = problem["message"].rstrip(".")
    if problem["is_permanent"]:
        return f"the output cannot be written: {message}; the job stops"
    return f"the output cannot be written at present: {message}; tried again"


def problem_text(problem: dict[str, Any]) -> str:
    """A job's `problem` in a line."""
    message = printable(problem["message"].rstrip("."))
    return f"{message}; the job fails with it" if problem["is_permanent"] else f"{message}; tried again"


# The command that lists the objects of a kind, which the API names in its answer for an unknown id.
_LISTED_BY: Final = {
    "Job": "jobs list",
    "DeadLetter": "dlq list",
    "Schedule": "schedules list",
    "Delivery": "webhooks deliveries",
    "WebhookEndpoint": "webhooks list",
    "Tenant": "tenants list",
    "ApiKey": "keys list",
}
_UNKNOWN_ID: Final = re.compile(r"No such (\w+) object")


def describe(error: NightshiftError) -> str:
    """An error as one line that names its field or, for an unknown id, the command that lists known ones."""
    unknown = _UNKNOWN_ID.match(error.message)
    if unknown is not None and unknown[1] in _LISTED_BY:
        return f"{error.message.rstrip('.')}; `nightshift {_LISTED_BY[unknown[1]]}` shows those there are"
    is_named = error.param is None or f"'{error.param}'" in error.message
    return error.message if is_named else f"{error.param}: {error.message}"
