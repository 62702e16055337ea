"""The command: one screen, one document, or a live view on the terminal's other screen."""

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.cli.top.snapshot import Snapshot
    from nightshift.client import Client

ANSWER_TIMEOUT_S: Final = 10.0
REDRAWN_S: Final = 1.0  # the longest time between two drawings
PIPE_COLUMNS: Final = 120  # where the output is no terminal and COLUMNS is not set
COLUMNS_MIN: Final = 40


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen as plain text and end, as in a pipe.")
    ] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=3600, help="Between two looks at the service.")
    ] = 2.0,
    json: Json = False,
) -> None:
    """Show what the service does now.

    Throughput, latency, queue, workers, running jobs.

    Live in a terminal: q quits, s sorts the jobs by something else, w the workers. In a pipe, and with
    --once, one screen is printed; with --json, one document. Workers and figures are the whole service's.
    The queue is that of all tenants for an administrator's key, else the tenant's own; the jobs are always
    the tenant's own.
    """
    from rich.console import Console

    with open_client(tries_max=1, answer_timeout_s=ANSWER_TIMEOUT_S) as client:
        if json:
            _print_document(client)
            return
        first = _taken(client)
        console = Console(highlight=False, markup=False, emoji=False)
        if once or not console.is_terminal or console.is_dumb_terminal:
            _print(first)
        else:
            _live(client, first, interval, console)


def _taken(client: "Client") -> "Snapshot":
    from nightshift.cli.top.snapshot import take
    from nightshift.process.settings import ClientSettings

    return take(client, ClientSettings().base_url)


def _print_document(client: "Client") -> None:
    """Prints JSON also where there is no answer. Raises ApiError, ServerUnreachable."""
    from nightshift.cli.top.snapshot import document, no_document
    from nightshift.client import ApiError, ServerUnreachable
    from nightshift.process.settings import ClientSettings

    try:
        shown = document(_taken(client))
    except (ApiError, ServerUnreachable) as error:
        print_json(no_document(ClientSettings().base_url, error))
        raise
    print_json(shown)


def _print(snapshot: "Snapshot") -> None:
    """Prints one screen without colours, as wide as the terminal."""
    from rich.console import Console

    from nightshift.cli.top.screen import View, screen

    console = Console(color_system=None, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PIPE_COLUMNS
    console.width = max(COLUMNS_MIN, console.width)
    console.print(screen(snapshot, View(), console.width))


def _live(client: "Client", first: "Snapshot", interval_s: float, console: "Console") -> None:
    """Redraws the screen until q, an error that will not pass, or a signal."""
    from dataclasses import replace

    from rich.live import Live

    from nightshift.cli.top.keyboard import wakeups
    from nightshift.cli.top.polling import Poller
    from nightshift.cli.top.screen import View, screen

    with (
        wakeups() as wake,
        Poller(lambda: _taken(client), first, interval_s, wake.wake) as poller,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        view = View(has_keys=wake.has_keys)
        while True:
            polled = poller.polled
            if polled.fatal is not None:
                raise polled.fatal
            view = replace(view, problem=polled.problem)
            width, height = console.size
            live.update(screen(polled.snapshot, view, width, height), refresh=True)
            for key in wake.wait(REDRAWN_S):
                if key in "qQ":
                    return
                view = view.next_jobs() if key == "s" else view.next_workers() if key == "w" else view
