"""The client or the database that a command uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nightshift.client import Client
    from nightshift.process.settings import DataSettings
    from nightshift.store import Store


LazyModels = Annotated[
    list[str] | None,
    typer.Option(
        "--lazy-model",
        metavar="PATH_OR_ID",
        help="The same, but loaded when work waits for it, and unloaded when it has none. May be repeated.  "
        "[default: NIGHTSHIFT_LAZY_MODELS]",
        show_default=False,
    ),
]
Upstreams = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="URL_OR_FILE",
        help="An OpenAI-compatible server whose models are served in place of models here, such as "
        "http://gpu-1:8000/v1, or a YAML file of several. May be repeated. A key is read from "
        "NIGHTSHIFT_UPSTREAM_API_KEY.  [default: NIGHTSHIFT_UPSTREAMS]",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The installation's directory.  [default: NIGHTSHIFT_DATA_DIR, else ~/.nightshift]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def data_settings(data_dir: Path | None = None) -> "DataSettings":
    """The installation's places; a directory from the command line wins."""
    from nightshift.process.settings import DataSettings

    chosen = data_dir or DataSettings().data_dir
    return DataSettings(data_dir=chosen.expanduser().absolute())


def open_client(**options: Any) -> "Client":
    """A client of the configured server, with these options. Raises ConfigurationError without a key."""
    from nightshift.client import Client

    return Client(**options)


@contextmanager
def operator_store(data_dir: Path | None = None) -> "Iterator[Store]":
    """The installation's database, for the operator's commands, which need no server.

    Raises ConfigurationError or SchemaBehind if it was not set up, and creates nothing.
    """
    from nightshift.store import Store, open_existing_database
    from nightshift.store.databases.migrate import check_schema

    database = open_existing_database(data_settings(data_dir))
    try:
        check_schema(database)
        yield Store(database)
    finally:
        database.close()


def advice_on_database() -> str:
    """The next step where a database's server does not answer; of a file, the error says it."""
    from nightshift.process.settings import DataSettings

    is_file = DataSettings().resolved_database_url.startswith("sqlite")
    return "" if is_file else "; is it running? NIGHTSHIFT_DATABASE_URL says where"
