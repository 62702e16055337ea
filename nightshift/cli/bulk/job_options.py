"""The options that `nightshift run` and `nightshift estimate` share, and the fields of a job that they make.

Options of bulk jobs come from their declarations in `BulkOptions`. A command that takes them has `**options`,
and sends `job_fields`.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from nightshift.jobs import JsonObject
from nightshift.jobs.options import OPTIONS, Choice, ColumnNames, Count, Option, Share, Size, Switch
from nightshift.jobs.priorities import PriorityClass

Command = TypeVar("Command", bound=Callable[..., None])

Input = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="The rows: local paths, file:///…, s3://…, file-…, or - for standard input. A glob or a "
        "directory: all it holds.",
    ),
]
EndpointName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The endpoint's name, such as chat or embeddings, or its route, such as /v1/completions.",
    ),
]
ModelId = Annotated[
    str | None, typer.Option(metavar="ID", help="The model; only with --input-column or --template.")
]
TemplateFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON file with the request made of each row; {{column}} is replaced."),
]
InputColumn = Annotated[
    str | None, typer.Option(metavar="C", help="The column with the text or prompt, instead of a template.")
]
IdColumn = Annotated[
    str | None, typer.Option(metavar="C", help="The column that identifies a row in the output.")
]
Priority = Annotated[PriorityClass, typer.Option(help="Priority class of the job.")]
Window = Annotated[
    str,
    typer.Option(
        metavar="TIME|HOURS",
        help="Time that the job may take from now: 90m, 8h, 2d. Or hours of every day in which it runs: "
        "01:00-06:00 (UTC), '22:00-06:00 Europe/Berlin'.",
    ),
]
NoThinking = Annotated[
    bool,
    typer.Option("--no-thinking", help="The same as --reasoning-effort none: answers without a thought."),
]
Name = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Name of a recurring run: the same name and date is the same job."),
]
Date = Annotated[
    str | None,
    typer.Option(metavar="D", help="Date of the run, with --name.  [default: today]", show_default=False),
]


def job_fields(
    further_inputs: Sequence[str],
    own: JsonObject,
    *,
    input: Input,
    endpoint: EndpointName,
    model: ModelId = None,
    template: TemplateFile = None,
    input_column: InputColumn = None,
    id_column: IdColumn = None,
    priority: Priority = PriorityClass.STANDARD,
    window: Window = "24h",
    no_thinking: NoThinking = False,
    name: Name = None,
    date: Date = None,
    **options: Any,
) -> JsonObject:
    """The body of a job, with the fields that are a command's `own`; without what is as by default. Raises
    InvalidOption.
    """
    from nightshift.cli.bulk import requests_of_rows as made

    effort = made.effort_of(options["reasoning_effort"], no_thinking=no_thinking)
    body = {
        "input": made.inputs_of([input, *further_inputs]),
        "endpoint": made.endpoint_of(endpoint).route,
        "template": made.template_of(endpoint, model, template, input_column),
        "id_column": id_column,
        **{option.name: _field(option, (options | effort)[option.name]) for option in OPTIONS},
        "priority": priority.value,
        **made.window_of(window),
        "name": name,
        "date": made.date_of(name, date),
        **own,
    }
    return {field: value for field, value in body.items() if value is not None}


def with_job_options(command: Command) -> Command:
    """Declares the shared options to typer beside the command's own: first what it has to be given."""
    shared = inspect.signature(job_fields).parameters.values()
    signature = inspect.signature(command)
    parameters = [
        parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD)
        for parameter in (
            *signature.parameters.values(),
            *(parameter for parameter in shared if parameter.kind is parameter.KEYWORD_ONLY),
            *map(_parameter, OPTIONS),
        )
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)
    # typer asks for the signature, and passes everything by its name.
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


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
