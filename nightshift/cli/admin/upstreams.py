"""`nightshift upstreams`: what OpenAI-compatible servers answer, before a worker is given them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from nightshift.cli.session import Json
from nightshift.cli.terminal import EXIT_FAILED, print_error, print_json, print_table

app = typer.Typer(help="Look at upstreams: OpenAI-compatible servers that run models.", no_args_is_help=True)

REPORT: Final = "workers.upstreams.report"
REPORT_S: Final = 100.0  # an upstream may have to load a model first
ABILITIES: Final = (
    *("chat", "completions", "embeddings", "rerank", "score"),
    *("streaming", "logprobs", "token_ids", "priority", "continues"),
)
HEADINGS: Final = ("UPSTREAM", "MODEL", "ENGINE", "CONTEXT", *(name.upper() for name in ABILITIES))


@app.command()
def probe(
    entries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL_OR_FILE",
            help="As `nightshift worker --upstream` takes it; several may be given.  "
            "[default: NIGHTSHIFT_UPSTREAMS]",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Ask upstreams for their models, and each model for one token in each way; exit 1 if a worker could not
    use one.
    """
    from nightshift.errors import ConfigurationError
    from nightshift.process.settings import WorkerSettings
    from nightshift.process.upstreams import read_upstreams

    chosen = tuple(entries or WorkerSettings().upstreams)
    if not chosen:
        raise ConfigurationError("name an upstream, or set NIGHTSHIFT_UPSTREAMS", param="URL_OR_FILE")
    read_upstreams(chosen)
    reports = report_of_upstreams(chosen)
    if json:
        print_json(reports)
    elif lines := [_cells(report["name"], model) for report in reports for model in report["models"]]:
        print_table(HEADINGS, lines)
    problems = [report["problem"] for report in reports if report["problem"]]
    for problem in problems:
        print_error(problem)
    if problems:
        raise SystemExit(EXIT_FAILED)


def report_of_upstreams(entries: Sequence[str]) -> list[dict[str, Any]]:
    """An object for each upstream. Raises ConfigurationError."""
    from nightshift.cli.processes.worker_code import report_of

    reports: list[dict[str, Any]] = report_of(REPORT, entries, REPORT_S)
    return reports


def _cells(upstream: str, model: dict[str, Any]) -> tuple[object, ...]:
    engine = f"{model['engine']} {model['version'] or ''}"
    abilities = ["yes" if model[name] else "-" for name in ABILITIES]
    return (upstream, model["id"], engine, model["context_length"], *abilities)
