"""`nightshift doctor`: check this installation, and pack what a supporter needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.cli.session import DataDir, Json, data_settings
from nightshift.cli.terminal import EXIT_FAILED, print_json, say

if TYPE_CHECKING:
    from nightshift.doctor.findings import Result


def doctor(
    data_dir: DataDir = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, max=3600, help="The longest that one check may take."),
    ] = 10.0,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tar.gz",
            help="Also write a support bundle: results, settings without secrets, versions, counts, logs.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Try every part of this installation. Exits 1 if something does not work; a warning changes nothing.

    Looks at the same settings the service reads: NIGHTSHIFT_* and .env. Exits 78 if they make no sense.
    """
    from contextlib import ExitStack

    from nightshift.doctor.bundle import new_bundle, write_bundle
    from nightshift.doctor.checks import every_check
    from nightshift.doctor.findings import Status
    from nightshift.doctor.masking import Masker
    from nightshift.doctor.running import examine
    from nightshift.doctor.site import Site
    from nightshift.settings import check_settings

    check_settings()
    site = Site.of(data_settings(data_dir))
    hide = Masker.of_installation(site.data.data_dir)
    with ExitStack() as stack:
        file = None if bundle is None else stack.enter_context(new_bundle(bundle))
        results = []
        for result in examine(every_check(site), timeout, hide):
            results.append(result)
            if not json:
                _print(result)
        if json:
            print_json([result.to_json() for result in results])
        if file is not None:
            write_bundle(file, site, results, hide, timeout)
    if bundle is not None:
        say(f"wrote {bundle}, {bundle.stat().st_size / 1024:.0f} KiB: look through it before you send it")
    if any(result.finding.status is Status.ERROR for result in results):
        raise SystemExit(EXIT_FAILED)


def _print(result: "Result") -> None:
    finding = result.finding
    typer.echo(f"{finding.status.upper():<7}  {result.name}: {finding.detail}")
    if finding.advice:
        typer.echo(f"         → {finding.advice}")
