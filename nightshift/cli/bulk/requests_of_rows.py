"""Turns the options of `nightshift run` into the fields of a job."""

import csv
import json
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

import typer

from nightshift import endpoints
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.job import INPUTS_MAX
from nightshift.jobs.options import KEEP_ALL
from nightshift.schedules.windows import parse_window

STANDARD_INPUT: Final = "-"
_FILE_ID: Final = "file-"
_WILDCARDS: Final = "*?"
_WINDOW: Final = re.compile(r"[1-9][0-9]{0,8}[mhd]")
_SIZE: Final = re.compile(r"([1-9][0-9]{0,17})(KiB|MiB|GiB|)")
_UNITS: Final = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


class InvalidOption(typer.BadParameter):
    """An invalid option, with its name on the command line."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message, param_hint=option)


def location(text: str, *, must_exist: bool = False, is_directory: bool = False) -> str:
    """A URI or file id as it is, a local path as a URI. Raises InvalidOption for a missing input."""
    if "://" in text:
        return text
    path = Path(text).expanduser()
    path = path.resolve() if ".." in path.parts else path.absolute()
    if text.startswith(_FILE_ID) and not path.exists():
        return text
    if must_exist and not _may_exist(path) and not any(letter in text for letter in _WILDCARDS):
        raise InvalidOption("INPUT", f"there is no file {path}")
    if is_directory and os.path.isfile(path):
        raise InvalidOption("--output", f"{path} is a file: name a folder, which need not be there yet")
    uri = path.as_uri()
    return uri + "/" if is_directory or os.path.isdir(path) else uri


def _may_exist(path: Path) -> bool:
    """Whether it exists, as far as this user may know: the service runs as another one, and may see more."""
    try:
        return path.exists()
    except PermissionError:
        return True


def inputs_of(words: Sequence[str]) -> str | list[str]:
    """The location of an input, or those of a list of objects. Raises InvalidOption."""
    if list(words) == [STANDARD_INPUT]:
        return STANDARD_INPUT
    if len(words) == 1:
        return location(words[0], must_exist=True)
    if len(words) > INPUTS_MAX:
        _refuse_so_many(words)
    if STANDARD_INPUT in words:
        raise InvalidOption("INPUT", "standard input (-) is an input by itself, not one of several")
    uris = [location(word, must_exist=True) for word in words]
    for word, uri in zip(words, uris, strict=True):
        is_file_id = "://" not in uri
        if is_file_id or uri.endswith("/") or any(letter in word for letter in _WILDCARDS):
            message = (
                f"{word}: an uploaded file, a folder or a pattern is an input by itself, not one of several"
            )
            raise InvalidOption("INPUT", message)
    return uris


def _refuse_so_many(words: Sequence[str]) -> NoReturn:
    folder, _, name = words[0].rpartition("/")
    _, dot, ending = name.partition(".")
    pattern = f"{folder}/*{dot}{ending}" if folder else f"*{dot}{ending}"
    raise InvalidOption(
        "INPUT",
        f"there are {len(words)} inputs, and {INPUTS_MAX} are taken: put a pattern in quotes, or the shell "
        f"makes a word of each file that matches. Try: nightshift run '{pattern}'. A folder is an input, too",
    )


def template_of(
    endpoint: str, model: str | None, template_file: Path | None, input_column: str | None
) -> JsonObject | None:
    """The request for each row; None if the rows are requests. Raises InvalidOption."""
    if template_file is not None and input_column is not None:
        raise InvalidOption("--input-column", "it cannot be combined with --template")
    if template_file is not None:
        return _from_file(template_file, model)
    if input_column is None:
        if model is not None:
            raise InvalidOption(
                "--model",
                "nothing to use it for: rows in OpenAI's batch-line form name their own model, and to make "
                "requests of other records it takes --input-column or --template",
            )
        return None
    if model is None:
        raise InvalidOption("--model", "--input-column needs a model")
    return endpoint_of(endpoint).row_template(model, "{{" + input_column + "}}")


def endpoint_of(name: str) -> endpoints.Endpoint:
    """An endpoint by its short name or its route. Raises InvalidOption."""
    try:
        return endpoints.named(name)
    except ValueError as error:
        *names, last = (endpoint.name for endpoint in endpoints.every())
        raise InvalidOption(
            "--endpoint", f"{name!r} is none of {', '.join(names)} and {last}, nor the route of one"
        ) from error


def window_of(text: str) -> JsonObject:
    """The fields of a duration such as `8h`, or of hours of the day such as `01:00-06:00 Europe/Berlin`; the
    server refuses one that is too long or too short. Raises InvalidOption.
    """
    if ":" in text:
        try:
            return {"window": str(parse_window(text))}
        except InvalidRequest as error:
            raise InvalidOption("--window", error.message) from error
    if _WINDOW.fullmatch(text) is None:
        raise InvalidOption(
            "--window", f"{text!r} is no time such as 90m, 8h or 7d, nor hours such as 01:00-06:00"
        )
    return {"completion_window": text}


def size_of(text: str | None, option: str) -> int | None:
    """Bytes, from a size such as `64MiB`. Raises InvalidOption."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidOption(option, f"{text!r} is no size such as 64MiB, 1GiB or a number of bytes")
    return int(match[1]) * _UNITS[match[2]]


def columns_of(text: str | None, option: str) -> list[str] | str | None:
    """Columns to keep: `all`, or names as a line of CSV has them. Raises InvalidOption."""
    if text is None or text == KEEP_ALL:
        return text
    names = next(csv.reader([text]), [])
    if not names or not all(names):
        raise InvalidOption(option, f"{text!r} is neither 'all' nor a list of names such as id,title")
    return names


def effort_of(effort: str | None, *, no_thinking: bool) -> JsonObject:
    """The option of how much models think. Raises InvalidOption for one that contradicts `--no-thinking`."""
    if no_thinking and effort not in (None, "none"):
        raise InvalidOption("--no-thinking", f"it cannot be combined with --reasoning-effort {effort}")
    return {"reasoning_effort": "none" if no_thinking else effort}


def date_of(name: str | None, date: str | None) -> str | None:
    """A recurring run's date, by default today in this machine's time zone.

    Raises InvalidOption for a date without a name.
    """
    if name is None and date is not None:
        raise InvalidOption("--date", "it belongs to a --name")
    return date or (datetime.now().astimezone().date().isoformat() if name else None)


def _from_file(path: Path, model: str | None) -> JsonObject:
    try:
        template = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidOption("--template", f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(template, dict):
        raise InvalidOption("--template", f"{path} is not a JSON object")
    if model is not None and template.setdefault("model", model) != model:
        raise InvalidOption("--model", f"{path} names another model, {template['model']!r}")
    return template
