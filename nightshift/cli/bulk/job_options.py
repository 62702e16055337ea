"""The options of bulk jobs on the command line, from their declarations in `BulkOptions`.

A command that takes them has `**options`, and sends `fields_of(options)`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from nightshift.jobs import JsonObject
from nightshift.jobs.options import OPTIONS, Choice, ColumnNames, Count, Option, Share, Size, Switch

Command = TypeVar("Command", bound=Callable[..., None])


def with_job_options(*, after: str) -> Callable[[Command], Command]:
    """Declares every option to typer, behind the parameter `after`."""

    def declare(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        place = 1 + [parameter.name for parameter in own].index(after)
        parameters = [*own[:place], *map(_parameter, OPTIONS), *own[place:]]
        # typer asks for the signature, and passes everything by its name.
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return declare


def fields_of(options: Mapping[str, Any]) -> JsonObject:
    """The fields of a job; None for what is as by default. Raises InvalidOption."""
    return {option.name: _field(option, options[option.name]) for option in OPTIONS}


def _field(option: Option, given: Any) -> Any:
    from nightshift.cli.bulk.requests_of_rows import columns_of, size_of

    match option.about.kind:
        case Size():
            return size_of(given, _flag(option))
        case ColumnNames():
            return columns_of(given, _flag(option))
        case Switch() | Choice():
            return None if given == option.default else given
        case _:
            return given


def _parameter(option: Option) -> inspect.Parameter:
    about = option.about
    kind, default = _type_and_default(option)
    said = typer.Option(_flag(option), metavar=about.metavar, help=about.help)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=Annotated[kind, said],
    )


def _type_and_default(option: Option) -> tuple[Any, Any]:
    """The type and default that typer takes. The server checks bounds."""
    match option.about.kind:
        case Switch():
            return bool, False
        case Choice() as choice:
            return (choice.type | None if option.default is None else choice.type), option.default
        case Share():
            return float | None, None
        case Size():
            return str | None, None
        case Count():
            return int | None, None
        case _:
            return str | None, None


def _flag(option: Option) -> str:
    return f"--{option.name.replace('_', '-')}"
