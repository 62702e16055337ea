"""`nightshift keys`: the operator's API keys, directly in the database."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from nightshift.cli.session import DataDir, Json, operator_store
from nightshift.cli.terminal import print_json, print_table, say
from nightshift.errors import NotFound
from nightshift.tenants.keys import DEFAULT_TENANT, ApiKey, new_key

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)

Tenant = Annotated[str, typer.Option(metavar="ID", help="Whose key it is.")]


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for; shown in listings.")] = "",
    tenant: Tenant = DEFAULT_TENANT,
    days: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Days until it expires.  [default: never]", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    key = new_key()
    with operator_store(data_dir) as store, store.transaction() as tx:
        now = tx.now()
        expires_at = None if days is None else now + timedelta(days=days)
        made = ApiKey.of(key, tenant_id=tenant, name=name, created_at=now, expires_at=expires_at)
        tx.keys.insert(made)
    if json:
        print_json(_as_json(made) | {"key": key})
    else:
        typer.echo(key)


@app.command("list")
def list_keys(
    tenant: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this tenant's keys.  [default: all]", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List keys: everything about them but the keys."""
    with operator_store(data_dir) as store, store.snapshot() as tx:
        found = [_as_json(key) for key in tx.keys.list(tenant)]
    if json:
        print_json(found)
    else:
        print_table(
            ("ID", "TENANT", "NAME", "ENDS IN", "CREATED", "EXPIRES", "REVOKED"),
            [tuple(key.values()) for key in found],
        )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As shown by `nightshift keys list`.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a key, from now on."""
    with operator_store(data_dir) as store, store.transaction() as tx:
        if not tx.keys.revoke(key_id, tx.now()):
            raise NotFound(f"there is no key {key_id} that could be revoked", param="id")
    say(f"revoked {key_id}")


def _as_json(key: ApiKey) -> dict[str, Any]:
    def shown(at: object) -> str | None:
        return None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"

    return {
        "id": key.id,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "last4": key.last4,
        "created_at": shown(key.created_at),
        "expires_at": shown(key.expires_at),
        "revoked_at": shown(key.revoked_at),
    }
