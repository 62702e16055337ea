"""Writes docs/reference/ from the code: settings, metrics, command line, routes and parameters.

`python -m infra.reference` writes the pages; a test fails where one is out of date.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer
from pydantic.fields import FieldInfo

from nightshift import endpoints
from nightshift.cli.main import app as command_line
from nightshift.endpoints.parameters import OPENAI, hints_of, values_of
from nightshift.process import settings
from nightshift.process.metrics import catalogue
from nightshift.process.metrics.family import Family

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"

SETTINGS: Final = {
    "Every process": ("DataSettings", "LogSettings", "QueueSettings", "LocationSettings", "ImageSettings"),
    "Rows and prices": ("RowSettings", "PriceSettings"),
    "API": ("ApiSettings", "SubmissionSettings", "ClientSettings"),
    "Quotas of tenants that have none of their own": ("QuotaSettings",),
    "Retention": ("RetentionSettings",),
    "Scheduler": ("SchedulerSettings",),
    "Worker": ("WorkerSettings",),
}
TYPES: Final = {
    "Seconds": "seconds",
    "SecondsOrNone": "seconds",
    "Retention": "seconds, 60 to 10 years",
    "Milliseconds": "milliseconds",
    "Count": "integer",
    "Limit": "integer",
    "Quota": "integer",
    "PortOrNone": "port",
    "Price": "number",
    "Share": "0 to 1",
    "Umask": "octal",
    "Words": "list",
    "Paths": "list of paths",
    "Cidrs": "list of networks",
    "Ports": "list of ports",
    "Groups": "list of groups",
    "HttpUrl": "URL",
    "RedisUrl": "URL",
    "Path": "path",
    "str": "text",
    "bool": "`true`, `false`",
}


def pages() -> dict[str, str]:
    """Text of every reference page by its file's name."""
    return {
        "settings.md": _page("Settings", _SETTINGS_HEAD, _settings()),
        "metrics.md": _page("Metrics", _METRICS_HEAD, _metrics()),
        "cli.md": _page("Commands and options", _CLI_HEAD, _commands()),
        "routes.md": _page("Routes", _ROUTES_HEAD, _routes()),
        "parameters.md": _page("Parameters without effect", _PARAMETERS_HEAD, _parameters()),
    }


def _page(title: str, head: str, lines: Iterable[str]) -> str:
    made = f"{head}\n\nThis page is made by `make docs`.\n" if head else "This page is made by `make docs`.\n"
    return "\n".join([f"# {title}", "", made, *lines]).rstrip("\n") + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |"
    yield ""


# -- settings

_SETTINGS_HEAD = """A setting is an environment variable with the prefix `NIGHTSHIFT_`, or a line of a file
`.env` in the directory in which the process starts: `NIGHTSHIFT_LEASE_TTL_S=60` sets `LEASE_TTL_S`.
[Operations](../operations.md#settings) says more. Numbers are finite and more than 0, except where 0 is
explained."""


def _settings() -> Iterator[str]:
    shown: set[str] = set()
    for title, names in SETTINGS.items():
        yield f"## {title}\n"
        rows = [row for name in names for row in _setting_rows(getattr(settings, name), shown)]
        yield from _table(("setting", "type", "default", "meaning"), rows)


def _setting_rows(concern: Any, shown: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the fields that the class declares and that no row is for yet."""
    [body] = ast.parse(inspect.getsource(concern)).body
    assert isinstance(body, ast.ClassDef)
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=annotation),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ) if name not in shown:
                shown.add(name)
                declared = concern.model_fields[name]
                meaning = " ".join(meaning.split())
                type_name = "bytes" if _is_size(name) else _type(annotation)
                yield f"`{name.upper()}`", type_name, _default(name, declared), meaning


def _is_size(name: str) -> bool:
    return name.endswith("_bytes") or "_bytes_" in name


def _type(annotation: ast.expr) -> str:
    text = ast.unparse(annotation).removesuffix(" | None")
    if text.startswith("Literal["):
        return ", ".join(f"`{value}`" for value in ast.literal_eval(text.removeprefix("Literal")))
    if text.startswith("Annotated["):
        return {"int": "integer", "float": "seconds"}[text.removeprefix("Annotated[").partition(",")[0]]
    return TYPES[text]


def _default(name: str, declared: FieldInfo) -> str:
    value = declared.default
    if value is None or value in ("", ()) or declared.default_factory or name == "prefix_cache_groups":
        return ""
    if _is_size(name):
        return _bytes(value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"{value:.15g}"
    return f"`{','.join(value) if isinstance(value, tuple) else value}`"


def _bytes(value: int) -> str:
    exponent = next(exponent for exponent in (3, 2, 1) if value >= 1024**exponent)
    return f"{value // 1024**exponent} {('KiB', 'MiB', 'GiB')[exponent - 1]}"


# -- metrics

_METRICS_HEAD = """`nightshift up` shows the metrics of all its processes at the API's `GET /metrics`, with
the labels `worker` and `process`. Elsewhere each process has an address: the API `GET /metrics`,
the scheduler `SCHEDULER_METRICS_PORT`, a worker `WORKER_METRICS_PORT`.

- No label names a tenant or a job. `class` is the priority class, `kind` is `online` or `bulk`.
- Figures from the database are as of the scrape. Counters of a process begin at 0 with it.
- An unknown figure is missing, never 0. Figures of an engine are as of the end of its last step."""


def _metrics() -> Iterator[str]:
    for title, families in catalogue.SECTIONS.items():
        yield f"## {title}\n"
        yield from _table(("metric", "process", "meaning", "look closer when"), map(_metric_row, families))


def _metric_row(family: Family) -> tuple[str, str, str, str]:
    labels = f" `{{{', '.join(family.labels)}}}`" if family.labels else ""
    closer = re.sub(r"\]\((\w+\.md)", r"](../\1", family.closer)
    return f"`{family.name}`{labels}", str(family.process), f"{family.help} ({family.type})", closer


# -- command line

_CLI_HEAD = """[The command line](../cli.md) says what scripts may rely on. Every command has `--help`, and
commands that print data have `--json`. `up`, `doctor` and commands that work on the database have
`--data-dir DIR`."""
COMMON: Final = {"--json", "--data-dir", "--help"}


def _commands() -> Iterator[str]:
    yield from _command(typer.main.get_command(command_line), "nightshift")


def _command(command: Any, path: str) -> Iterator[str]:
    if subcommands := getattr(command, "commands", None):
        for name, subcommand in subcommands.items():
            yield from _command(subcommand, f"{path} {name}")
        return
    arguments = [shown for shown in command.params if shown.param_type_name == "argument"]
    options = [
        shown for shown in command.params if shown not in arguments and not COMMON.intersection(shown.opts)
    ]
    yield f"## `{' '.join([path, *map(_metavar, arguments)])}`\n"
    yield " ".join((command.help or "").partition("\n\n")[0].split()) + "\n"
    yield from [f"- `{_metavar(argument)}`: {argument.help}" for argument in arguments if argument.help]
    yield from [_option(option) for option in options if not option.hidden]
    yield ""


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).replace("...", "…")


def _option(option: Any) -> str:
    """A line such as "`--port` (8000): The port to listen on."."""
    meaning, _, default = " ".join((option.help or "").split()).partition("[default: ")
    default = default.removesuffix("]")
    if not default and option.show_default and option.default not in (None, False, [], ()):
        default = str(option.default.value if isinstance(option.default, Enum) else option.default)
    names = ", ".join([*option.opts, *option.secondary_opts])
    shown = f"`{names} {option.metavar}`" if option.metavar else f"`{names}`"
    return f"- {shown}{f' ({default})' if default else ''}: {meaning.strip()}"


# -- routes

_ROUTES_HEAD = """`GET /openapi.json` has every field, and `/docs` shows it in a browser. A key needs the
scope of the route; routes without one need no key."""


def _routes() -> Iterator[str]:
    from api.app import create_app
    from api.services.services import AppSettings

    paths = create_app(AppSettings()).openapi()["paths"]
    rows = [
        (f"`{method.upper()} {path}`", _scope(route), route.get("summary", ""))
        for path, methods in paths.items()
        for method, route in methods.items()
    ]
    return _table(("route", "scope", "does"), rows)


def _scope(route: dict[str, Any]) -> str:
    return ", ".join(f"`{scope}`" for need in route.get("security", []) for scope in need.get("key", []))


# -- parameters

_PARAMETERS_HEAD = """Requests to [endpoints](../endpoints.md) may have these parameters of OpenAI's API.
Their values are checked: one of a wrong type is a 400 that names it."""


def _parameters() -> Iterator[str]:
    yield "## Accepted, without effect\n"
    yield from _table(("parameter", "endpoints", "values", "here"), _accepted())
    yield "## Refused, unless the value asks for nothing\n"
    yield from _table(("parameter", "values that ask for nothing"), _refused())


def _accepted() -> Iterator[tuple[str, str, str, str]]:
    names: dict[str, list[str]] = {}
    about: dict[str, tuple[str, str]] = {}
    for endpoint in endpoints.every():
        for path, field, mark in hints_of(endpoint.request_type):
            names.setdefault(path, []).append(endpoint.name)
            about[path] = values_of(field.annotation), mark.because
    for path, on in sorted(names.items()):
        yield f"`{path}`", "all" if len(on) == len(endpoints.every()) else ", ".join(on), *about[path]


def _refused() -> Iterator[tuple[str, str]]:
    known = {name for endpoint in endpoints.every() for name in endpoint.request_type.model_fields}
    for name in sorted(OPENAI.keys() - known):
        yield f"`{name}`", ", ".join(f"`{json.dumps(value)}`" for value in OPENAI[name]) or "none"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
