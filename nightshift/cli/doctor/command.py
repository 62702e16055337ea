"""The command `nightshift doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.cli.session import DataDir, Json, data_settings
from nightshift.cli.terminal import EXIT_FAILED, print_json

if TYPE_CHECKING:
    from nightshift.cli.doctor.examination import Result


def doctor(
    data_dir: DataDir = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, max=3600, help="The longest that one check may take."),
    ] = 10.0,
    json: Json = False,
) -> None:
    """Try every part of this installation. Exits 1 if something does not work; a warning changes nothing.

    Looks at the same settings the service reads: NIGHTSHIFT_* and .env. Exits 78 if they make no sense.
    """
    from nightshift.cli.doctor.checks import every_check
    from nightshift.cli.doctor.examination import Status, examine
    from nightshift.cli.doctor.site import Site
    from nightshift.process.settings import check_settings

    check_settings()
    site = Site(data=data_settings(data_dir))
    results = []
    for result in examine(every_check(site), timeout):
        results.append(result)
        if not json:
            _print(result)
    if json:
        print_json([result.to_json() for result in results])
    if any(result.finding.status is Status.ERROR for result in results):
        raise SystemExit(EXIT_FAILED)


def _print(result: "Result") -> None:
    finding = result.finding
    typer.echo(f"{finding.status.upper():<7}  {result.check.name}: {finding.detail}")
    if finding.advice:
        typer.echo(f"         → {finding.advice}")
