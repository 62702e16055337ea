"""Doctor's findings about Redis: servers that are set up well, badly, and with a wrong clock."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from nightshift.cli.doctor.examination import Status
from nightshift.cli.processes import valkey as valkey_process
from tests.faults.kit.clock import shifted_environment
from tests.integration.cli.doctor.conftest import Look, expect
from tests.integration.servers import ValkeyServer, running


@contextmanager
def a_redis(*options: str, env: dict[str, str] | None = None) -> Iterator[redis.Redis]:
    """Starts a server with these options after ours, which they replace."""
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        socket = Path(folder) / "valkey.sock"
        command = [*valkey_process.command_line(Path(folder), socket=socket), *options]
        with (
            running(command, Path(folder) / "log", socket, env),
            redis.Redis(unix_socket_path=str(socket)) as client,
        ):
            yield client


def use(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    path = client.connection_pool.connection_kwargs["path"]
    monkeypatch.setenv("NIGHTSHIFT_REDIS_URL", f"redis+socket://{path}")


def test_a_server_as_up_starts_it_is_well(look: Look, valkey: ValkeyServer, monkeypatch):
    use(valkey.client, monkeypatch)
    for id in ("queue", "queue.eviction", "queue.persistence", "queue.clock"):
        assert look(id).status is Status.OK


def test_a_server_that_evicts_is_a_warning(look: Look, monkeypatch):
    with a_redis("--maxmemory-policy", "allkeys-lru", "--maxmemory", "64mb") as client:
        use(client, monkeypatch)
        finding = expect(look("queue.eviction"), Status.WARNING)
    assert finding.detail == "maxmemory-policy is allkeys-lru, maxmemory 64 MiB"
    assert "set it to noeviction" in finding.advice


def test_a_full_server_is_an_error_though_it_answers(look: Look, monkeypatch):
    with a_redis("--maxmemory", "16mb") as client:
        use(client, monkeypatch)
        with suppress(redis.OutOfMemoryError):
            while True:
                client.rpush("ballast", bytes(64 * 1024))
        expect(look("queue"), Status.ERROR, "takes nothing: ", "used memory > 'maxmemory'", "maxmemory")


@pytest.mark.parametrize(
    ("rights", "reason"),
    [
        (("~*", "&*", "+@read", "+@connection"), "no permissions to run the 'set' command"),
        (("~others:*", "&*", "+@all"), "No permissions to access a key"),
    ],
)
def test_a_user_without_the_right_to_write_is_an_error_that_says_so(
    look: Look, monkeypatch, rights: tuple[str, ...], reason: str
):
    with a_redis() as client:
        use(client, monkeypatch)
        client.execute_command("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "-@all", *rights)
        finding = expect(look("queue"), Status.ERROR)
    assert reason in finding.detail
    assert "ns:*" in finding.advice


def test_a_server_that_is_nearly_full_is_a_warning(look: Look, monkeypatch):
    with a_redis("--maxmemory", "64mb") as client:
        use(client, monkeypatch)
        assert look("queue.eviction").status is Status.OK
        while client.info("memory")["used_memory"] < 0.95 * 64 * 2**20:
            client.rpush("ballast", bytes(64 * 1024))
        expect(look("queue.eviction"), Status.WARNING, "raise maxmemory")


def test_a_server_that_keeps_nothing_is_well_and_it_is_said_what_that_costs(look: Look, monkeypatch):
    with a_redis("--appendonly", "no") as client:
        use(client, monkeypatch)
        expect(look("queue.persistence"), Status.OK, "a loss costs seconds")


def test_a_server_that_cannot_write_to_its_disk_is_an_error(look: Look, monkeypatch):
    with a_redis("--appendonly", "no") as client:
        use(client, monkeypatch)
        (Path(str(client.config_get("dir")["dir"])) / "dump.rdb").mkdir()  # where its file would be
        client.bgsave()
        while client.info("persistence")["rdb_bgsave_in_progress"]:
            threading.Event().wait(0.02)  # a server cannot signal it; it can only be asked
        expect(look("queue.persistence"), Status.ERROR, "rdb_last_bgsave_status is err")


def test_a_server_with_a_wrong_clock_is_an_error(look: Look, monkeypatch, tmp_path):
    with a_redis(env=dict(shifted_environment(tmp_path, ahead_s=3600))) as client:
        use(client, monkeypatch)
        finding = expect(look("queue.clock"), Status.ERROR)
    assert finding.figures["ahead_s"] == pytest.approx(3600, abs=60)
    assert "synchronise the clocks" in finding.advice


def test_the_embedded_server_is_looked_at_while_it_runs(look: Look, data_dir: Path):
    assert look("queue.eviction").status is Status.SKIPPED
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        server = ValkeyServer(Path(folder))
        server.start()
        (data_dir / "valkey").mkdir(parents=True)
        (data_dir / "valkey" / "valkey.sock").symlink_to(server.socket)
        assert look("queue").detail == "the embedded server answers"
        assert look("queue.eviction").status is Status.OK
        server.kill()
    assert look("queue.eviction").status is Status.SKIPPED, "its socket was left behind"
    assert look("queue").status is Status.OK
