"""`nightshift tenants`: create, list, show, change and delete tenants, directly in the database."""

import re
from typing import Annotated, Any, Final

import typer

from nightshift.cli.session import DataDir, Json, operator_store
from nightshift.cli.terminal import print_json, print_list, print_table, say, utc_text
from nightshift.errors import InvalidRequest
from nightshift.jobs.priorities import PriorityClass
from nightshift.tenants.audit import Actor
from nightshift.tenants.quotas import QUOTA_NAMES
from nightshift.tenants.tenant import Tenant

app = typer.Typer(
    help="Create, list, show, change and delete tenants. `nightshift keys` makes their keys.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 32 of a-z, 0-9 and '-'.")]
Ceiling = Annotated[
    PriorityClass | None,
    typer.Option(
        "--priority-ceiling",
        help="The best class of its jobs.  [default: as it was, interactive at first]",
        show_default=False,
    ),
]
QuotaOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="NAME=NUMBER",
        help=f"A limit of its own, or NAME=default; may be repeated. NAME: {', '.join(QUOTA_NAMES)}.",
        show_default=False,
    ),
]
LIST_MAX = 10_000
HEADINGS = ("NAME", "STATUS", "CEILING", "QUOTAS", "CREATED", "DISABLED", "DESCRIPTION")

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


@app.command()
def create(
    name: Name,
    description: Annotated[str, typer.Option(help="Description, shown in listings.")] = "",
    priority_ceiling: Ceiling = None,
    quota: QuotaOptions = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Create a tenant. It has no key yet."""
    from nightshift.lifecycle.tenants import Administration

    with operator_store(data_dir) as store, store.transaction() as tx:
        made = Administration(tx, Actor.of_user()).create_tenant(
            name, description, priority_ceiling or PriorityClass.INTERACTIVE, _quotas(quota)
        )
    _print(made, json)


@app.command("list")
def list_tenants(data_dir: DataDir = None, json: Json = False) -> None:
    """List tenants, newest first."""
    with operator_store(data_dir) as store, store.snapshot() as tx:
        tenants = [_as_json(tenant) for tenant in tx.tenants.list(limit=LIST_MAX)]
    print_list(tenants, HEADINGS, _line, json=json)


@app.command()
def show(name: Name, data_dir: DataDir = None, json: Json = False) -> None:
    """Show a tenant."""
    from nightshift.lifecycle.tenants import get_tenant

    with operator_store(data_dir) as store, store.snapshot() as tx:
        tenant = get_tenant(tx, name)
    _print(tenant, json)


@app.command()
def update(
    name: Name,
    description: Annotated[
        str | None, typer.Option(help="Description.  [default: as it was]", show_default=False)
    ] = None,
    disabled: Annotated[
        bool | None,
        typer.Option(
            "--disable/--enable",
            help="Refuse its keys, or accept them again; its jobs go on.  [default: as it was]",
            show_default=False,
        ),
    ] = None,
    priority_ceiling: Ceiling = None,
    quota: QuotaOptions = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Change a tenant's description, priority or quotas, or disable it."""
    if (description, disabled, priority_ceiling, quota) == (None, None, None, None):
        raise typer.BadParameter(
            "say what to change: --description, --disable, --enable, --priority-ceiling, --quota"
        )
    from nightshift.lifecycle.tenants import Administration

    with operator_store(data_dir) as store, store.transaction() as tx:
        administration = Administration(tx, Actor.of_user())
        changed = administration.update_tenant(
            name,
            description=description,
            disabled=disabled,
            priority_ceiling=priority_ceiling,
            quotas=_quotas(quota),
        )
    _print(changed, json)


@app.command()
def delete(name: Name, data_dir: DataDir = None) -> None:
    """Delete a tenant and revoke its keys.

    Its jobs must have ended. Its name is not given again.
    """
    from nightshift.lifecycle.tenants import Administration

    with operator_store(data_dir) as store, store.transaction() as tx:
        Administration(tx, Actor.of_user()).delete_tenant(name)
    say(f"deleted {name}")


def _quotas(options: list[str] | None) -> dict[str, int | None]:
    """Quotas by name; None means the default. Raises InvalidRequest."""
    quotas: dict[str, int | None] = {}
    for option in options or ():
        name, _, value = option.partition("=")
        if value != "default" and not _NUMBER.fullmatch(value):
            raise InvalidRequest(f"Invalid '--quota': {option!r} is not NAME=NUMBER or NAME=default.")
        quotas[name] = None if value == "default" else int(value)
    return quotas


def _print(tenant: Tenant, json: bool) -> None:
    if json:
        print_json(_as_json(tenant))
    else:
        print_table(HEADINGS, [_line(_as_json(tenant))])


def _line(tenant: dict[str, Any]) -> tuple[object, ...]:
    return (
        tenant["name"],
        tenant["status"],
        tenant["priority_ceiling"],
        ",".join(f"{name}={value}" for name, value in tenant["quotas"].items()),
        tenant["created_at"],
        tenant["disabled_at"],
        tenant["description"],
    )


def _as_json(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.id,
        "status": tenant.state.value,
        "priority_ceiling": tenant.priority_ceiling.value,
        "quotas": tenant.quotas.to_json(),
        "description": tenant.description,
        "created_at": utc_text(tenant.created_at),
        "disabled_at": utc_text(tenant.disabled_at),
    }
