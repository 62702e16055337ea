"""`nightshift audit`: who did what to tenants, keys, webhooks and workers, directly from the database."""

import json as json_module
from typing import Annotated, Any

import typer

from nightshift.cli.session import DataDir, Json, operator_store
from nightshift.cli.terminal import print_list, utc_text
from nightshift.tenants.audit import Action, AuditEntry

LIMIT_MAX = 100_000


def audit(
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only about this tenant.  [default: all]", show_default=False),
    ] = None,
    action: Annotated[
        Action | None, typer.Option(help="Only this action.  [default: all]", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=LIMIT_MAX, metavar="N", help="At most so many.")] = 100,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show what administrators have done, newest first. No secret is in it."""
    with operator_store(data_dir) as store, store.snapshot() as tx:
        entries = [_as_json(entry) for entry in tx.audit.list(limit=limit, of_tenant=tenant, action=action)]
    headings = ("AT", "ACTOR", "ACTION", "TENANT", "OBJECT", "DETAILS")
    print_list(entries, headings, _line, json=json)


def _line(entry: dict[str, Any]) -> tuple[object, ...]:
    return (*list(entry.values())[:-1], json_module.dumps(entry["details"]))


def _as_json(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": utc_text(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "tenant": entry.tenant_id,
        "object_id": entry.object_id,
        "details": entry.details,
    }
