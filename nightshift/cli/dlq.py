"""`nightshift dlq`: list, replay and discard dead letters."""

import json as json_module
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import EXIT_FAILED, describe, print_error, print_list, say, time_text
from nightshift.jobs import JsonObject
from nightshift.jobs.dead_letters import DeadLetterState

if TYPE_CHECKING:
    from nightshift.client import ApiError

app = typer.Typer(help="List, replay and discard rows that killed their workers.", no_args_is_help=True)

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Dead letters: dlq_….")]


@app.command("list")
def list_dead_letters(
    status: Annotated[
        DeadLetterState | None, typer.Option(help="Only those in this state; default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The latest so many.")] = 20,
    json: Json = False,
) -> None:
    """List dead letters, the latest first."""
    with open_client() as client:
        letters = list(client.dead_letters(status=status, limit=limit))
    headings = ("ID", "STATUS", "JOB", "ROW", "CAUSE", "CRASHES", "DIED", "REPLAYED AS")
    print_list(letters, headings, _line, json=json)


@app.command()
def replay(ids: Ids, json: Json = False) -> None:
    """Submit rows again, each as an online job of its own. Their lines in the old output stay."""
    with open_client() as client:
        _decide(ids, client.replay_dead_letter, "{id} runs again as {replay_job_id}", json)


@app.command()
def discard(ids: Ids, json: Json = False) -> None:
    """Take rows off the list of those that wait for a decision. Nothing else changes."""
    with open_client() as client:
        _decide(ids, client.discard_dead_letter, "{id} is discarded", json)


def _decide(ids: Sequence[str], decide: Callable[[str], JsonObject], done: str, json: bool) -> None:
    """Decides each id in turn. Goes on past refusals, except a refused key, which concerns them all."""
    from nightshift.client import ApiError

    refusals = 0
    for id in ids:
        try:
            letter = decide(id)
        except ApiError as error:
            if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise
            refusals += 1
            print_error(_refusal_text(id, error))
        else:
            _print_decided(letter, done.format_map(letter), json)
    if refusals:
        raise typer.Exit(EXIT_FAILED)


def _refusal_text(id: str, error: "ApiError") -> str:
    """The reason of a refusal, in one line."""
    about = "" if id in error.message else f"{id}: "
    return f"{about}{describe(error)}"


def _print_decided(letter: JsonObject, message: str, json: bool) -> None:
    """Reported singly: a later refusal does not undo it."""
    if json:
        typer.echo(json_module.dumps(letter, ensure_ascii=False))
    else:
        say(message)


def _line(letter: JsonObject) -> tuple[object, ...]:
    return (
        letter["id"],
        letter["status"],
        letter["job_id"],
        letter["custom_id"],
        letter["cause"],
        letter["crashes"],
        time_text(letter["died_at"]),
        letter["replay_job_id"],
    )
