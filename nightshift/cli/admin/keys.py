"""`nightshift keys`: the operator's API keys, directly in the database."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from nightshift.cli.session import DataDir, Json, operator_store
from nightshift.cli.terminal import print_json, print_list, say, utc_text
from nightshift.errors import NotFound
from nightshift.tenants.audit import Actor
from nightshift.tenants.keys import DEFAULT_SCOPES, DEFAULT_TENANT, ApiKey, Scope

if TYPE_CHECKING:
    from nightshift.lifecycle.tenants import CreatedKey

app = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

OVERLAP_MAX_H: Final = 720

Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose key it is; created if it does not exist.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As shown by `nightshift keys list`.")]


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for; shown in listings.")] = "",
    tenant: Tenant = DEFAULT_TENANT,
    scopes: Annotated[
        list[Scope] | None,
        typer.Option(
            "--scope", help="What it may do. May be repeated.  [default: submit, read]", show_default=False
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Days until it expires.  [default: never]", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    from nightshift.lifecycle.tenants import Administration

    with operator_store(data_dir) as store, store.transaction() as tx:
        administration = Administration(tx, Actor.of_user())
        administration.ensure_tenant(tenant)
        made = administration.create_key(
            tenant,
            name=name,
            scopes=scopes or DEFAULT_SCOPES,
            lasts=None if days is None else timedelta(days=days),
        )
    _print_created(made, json)


@app.command("list")
def list_keys(
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this tenant's keys.  [default: all]", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List keys: everything about them but the keys."""
    with operator_store(data_dir) as store, store.snapshot() as tx:
        keys = [_as_json(key) for key in tx.keys.list(tenant)]
    headings = ("ID", "TENANT", "NAME", "SCOPES", "ENDS IN", "CREATED", "EXPIRES", "REVOKED", "REPLACED BY")
    print_list(keys, headings, _line, json=json)


@app.command()
def rotate(
    key_id: KeyId,
    overlap_hours: Annotated[
        int, typer.Option(min=0, max=OVERLAP_MAX_H, metavar="N", help="Hours for which the old key is valid.")
    ] = 24,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Replace a key: make one with the same name and scopes, and let the old one expire."""
    from nightshift.lifecycle.tenants import Administration

    with operator_store(data_dir) as store, store.transaction() as tx:
        old_key = tx.keys.find(key_id)
        if old_key is None:
            raise NotFound(f"there is no key {key_id} that could be rotated", param="id")
        made = Administration(tx, Actor.of_user()).rotate_key(old_key, timedelta(hours=overlap_hours))
    _print_created(made, json)


@app.command()
def revoke(
    key_id: KeyId,
    data_dir: DataDir = None,
) -> None:
    """Revoke a key, from now on."""
    from nightshift.lifecycle.tenants import Administration

    with operator_store(data_dir) as store, store.transaction() as tx:
        api_key = tx.keys.find(key_id)
        if api_key is None or api_key.revoked_at is not None:
            raise NotFound(f"there is no key {key_id} that could be revoked", param="id")
        Administration(tx, Actor.of_user()).revoke_key(api_key)
    say(f"revoked {key_id}")


def _print_created(made: "CreatedKey", json: bool) -> None:
    if json:
        print_json(_as_json(made.stored) | {"key": made.key})
    else:
        typer.echo(made.key)


def _line(key: dict[str, Any]) -> tuple[object, ...]:
    return tuple((key | {"scopes": ",".join(key["scopes"])}).values())


def _as_json(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "last4": key.last4,
        "created_at": utc_text(key.created_at),
        "expires_at": utc_text(key.expires_at),
        "revoked_at": utc_text(key.revoked_at),
        "replaced_by": key.replaced_by,
    }
