"""`nightshift webhooks`: the signing secret."""

import typer

from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import print_json

app = typer.Typer(help="What receivers of webhooks need.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Keeps `secret` a subcommand although it is the only one."""


@app.command()
def secret(json: Json = False) -> None:
    """Print the secret that signs your webhooks (Standard Webhooks); made at the first call.

    A job that brings its own secret is signed with that one instead.
    """
    with open_client() as client:
        found = client.webhook_secret()
    if json:
        print_json({"secret": found})
    else:
        typer.echo(found)
