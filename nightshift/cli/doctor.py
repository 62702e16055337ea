"""`nightshift doctor`: check this installation."""

import dataclasses

import typer

from nightshift.cli.session import DataDir, Json, data_settings
from nightshift.cli.terminal import EXIT_FAILED, print_json


def doctor(data_dir: DataDir = None, json: Json = False) -> None:
    """Try every part of this installation. Exits 1 if something is wrong.

    Looks at the same settings the service reads: NIGHTSHIFT_* and .env. Exits 78 if they make no sense.
    """
    from nightshift.cli.checks import examine
    from nightshift.settings import check_settings

    check_settings()
    findings = []
    for finding in examine(data_settings(data_dir)):
        findings.append(finding)
        if not json:
            typer.echo(f"{'ok  ' if finding.is_well else 'BAD '} {finding.name}: {finding.detail}")
            if not finding.is_well:
                typer.echo(f"     → {finding.advice}")
    if json:
        print_json([dataclasses.asdict(finding) | {"ok": finding.is_well} for finding in findings])
    if not all(finding.is_well for finding in findings):
        raise SystemExit(EXIT_FAILED)
