"""Conditions of every test, set before anything is imported that would decide otherwise."""

from __future__ import annotations

import functools
import gc
import os
import signal
import ssl
import sys
from collections.abc import Generator, Hashable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import settings
from sqlalchemy import Connection, Engine, event
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# A busy machine may hold up any example for seconds; how long one takes says nothing of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Without a CUDA device Triton's kernels run in its interpreter, on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Where Python may not keep bytecode, each process of the tests compiles what it imports: for the API 5 s of
# CPU instead of 1.8.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that runs a command in the background has it ignore SIGINT, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

create_default_context = ssl.create_default_context


@functools.cache
def _context(environment: tuple[str | None, ...], purpose: ssl.Purpose, **where: Any) -> ssl.SSLContext:
    return create_default_context(purpose, **where)


@functools.wraps(create_default_context)
def _shared_context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **where: Any) -> ssl.SSLContext:
    """Each HTTP client, and each API that sends webhooks, makes a context of its own and reads all public
    certificates for it, in 30 ms.
    """
    environment = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return _context(environment, purpose, **where)


ssl.create_default_context = _shared_context


class SharedStatements(MutableMapping[tuple[Any, ...], Any]):
    """Statements as SQLAlchemy has compiled them, for all databases. Each would compile each one anew, in a
    millisecond or more, and most tests have a database of their own.
    """

    def __init__(self) -> None:
        self._compiled: dict[Hashable, Any] = {}

    def __getitem__(self, key: tuple[Any, ...]) -> Any:
        return self._compiled[self._shared(key)]

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[self._shared(key)] = compiled

    def __delitem__(self, key: tuple[Any, ...]) -> None:
        del self._compiled[self._shared(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._compiled)

    def __len__(self) -> int:
        return len(self._compiled)

    def _shared(self, key: tuple[Any, ...]) -> Hashable:
        """The key of an engine's own cache begins with its dialect; this one with what makes two alike."""
        dialect, *others = key
        kind = type(dialect), dialect.server_version_info, dialect.use_insertmanyvalues_wo_returning
        return *kind, *others


SHARED_STATEMENTS = SharedStatements()


@event.listens_for(Engine, "engine_connect")
def _use_shared_statements(connection: Connection) -> None:
    connection.execution_options(compiled_cache=SHARED_STATEMENTS)


# A command that is run in this process would have the tree of all commands made anew, in 20 ms.
typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freezes what is imported: looking through it for garbage again and again would take a tenth of all CPU.

    Loading a model collects garbage each time (`mapped_files.py`): 0.2 s with all of torch in it.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


TESTS = Path(__file__).parent
WAITING_FILES = (TESTS / "e2e", TESTS / "faults")  # mostly for leases and other processes
COMPUTING_FILES = (TESTS / "unit" / "engine",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long first, those that wait in turns with those that compute: a file is one process's
    work, and short ones even out the end.
    """
    waiting = dict.fromkeys(item.path for item in items if _is_among(item, WAITING_FILES))
    computing = dict.fromkeys(item.path for item in items if _is_among(item, COMPUTING_FILES))
    turns = {path: turn for paths in (waiting, computing) for turn, path in enumerate(paths)}
    last = len(items)  # a list is empty while it is sorted
    items.sort(key=lambda item: turns.get(item.path, last))


def _is_among(item: pytest.Item, folders: tuple[Path, ...]) -> bool:
    return any(item.path.is_relative_to(folder) for folder in folders)


# Their files share a service, or processes that have imported our engine.
SHARING_FOLDERS = ("tests/e2e/", "tests/faults/workers/")


class FilesThatShareAService(LoadFileScheduling):
    """A file is one process's work, and so is each of these folders: two would start two services."""

    def _split_scope(self, nodeid: str) -> str:
        shared = next(filter(nodeid.startswith, SHARING_FOLDERS), None)
        return shared or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesThatShareAService | None:
    return FilesThatShareAService(config, log) if config.getvalue("dist") == "loadfile" else None
