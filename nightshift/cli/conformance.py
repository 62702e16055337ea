"""`nightshift conformance`: check a server with the official client."""

from typing import Annotated

import typer

from nightshift.cli.session import Json
from nightshift.cli.terminal import EXIT_USAGE, fail, is_interactive, print_json, print_table, say
from nightshift.process.exit_codes import UNREACHABLE_EXIT

INSTALL = "the checks are not installed here: pip install ./conformance in a checkout"


def conformance(
    base_url: Annotated[str, typer.Option(metavar="URL", help="As the client takes it, with /v1.")],
    api_key: Annotated[
        str, typer.Option(envvar="NIGHTSHIFT_API_KEY", help="The server's key, if it wants one.")
    ] = "none",
    model: Annotated[
        str | None, typer.Option(help="For chats.  [default: the first listed one that answers]")
    ] = None,
    embedding_model: Annotated[
        str | None, typer.Option(help="For embeddings.  [default: the first listed one that answers]")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An area, or area.check; may be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="What is not offered counts as failed.")] = False,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for each check.")] = 60.0,
    batch_time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds more for each check that waits for a batch.")
    ] = 600.0,
    poll_interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks at a batch.")] = 1.0,
    json: Json = False,
) -> None:
    """Check a server's OpenAI API with the official clients.

    Exits 0 if all checks passed, 1 if one failed, 69 if the server cannot be reached or
    refuses the key. Deletes what it creates.
    """
    try:
        import openai

        from conformance import report as reports
    except ModuleNotFoundError:
        fail(INSTALL, EXIT_USAGE)
    from conformance.checks import AREAS
    from conformance.outcomes import Report
    from conformance.registry import selected, unknown
    from conformance.runner import Run, Unreachable, check_reachable
    from conformance.session import Options

    options = Options(base_url, api_key, model, embedding_model, time_limit, batch_time_limit, poll_interval)
    if not_there := unknown(AREAS, only or ()):
        names = ", ".join(area.name for area in AREAS)
        fail(f"--only: there is no {', '.join(not_there)}; the areas are {names}", EXIT_USAGE)
    try:
        check_reachable(options)
    except Unreachable as error:
        fail(error.message, UNREACHABLE_EXIT)
    run = Run(options)
    results = []
    for result in run.results(selected(AREAS, only or ())):
        results.append(result)
        if is_interactive():
            say(f"{result.area}: {result.statement}: {result.outcome}")
    report = Report(openai.__version__, results, run.left_behind, run.node_client_version)
    if json:
        print_json(reports.as_json(report))
    else:
        print_table(reports.HEADINGS, reports.table_rows(report))
    say(reports.summary(report))
    for reason, count in reports.skipped(report).items():
        say(f"SKIPPED {count} checks: {reason}")
    for name in report.left_behind:
        say(f"left behind on the server: {name}")
    raise SystemExit(report.exit_code(is_strict=strict))
