"""The embedded Valkey, started the way `nightshift up` starts it."""

import stat
from pathlib import Path

import redis

from nightshift.cli.processes import valkey as embedded
from tests.integration.servers import HOST, ValkeyServer, free_port, running


def test_it_keeps_what_it_was_told_in_a_log_and_drops_nothing(valkey: ValkeyServer) -> None:
    config = valkey.client.config_get("*")

    assert {name: config[name] for name in ("appendonly", "appendfsync", "maxmemory-policy", "save")} == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
    }


def test_only_its_user_can_open_its_socket_and_there_is_no_port(valkey: ValkeyServer) -> None:
    path = Path(valkey.settings.redis_url.removeprefix("redis+socket://"))

    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert valkey.client.config_get("port")["port"] == "0"


def test_on_a_port_it_listens_to_this_machine_only(tmp_path: Path) -> None:
    port = free_port()
    with running(embedded.command_line(tmp_path, port=port), tmp_path / "valkey.log", port):
        client = redis.Redis(host=HOST, port=port)
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        client.close()


def test_what_it_was_told_more_than_a_second_ago_survives_a_kill(own_valkey: ValkeyServer) -> None:
    own_valkey.client.set("ns:kept", "yes")
    own_valkey.client.execute_command("BGREWRITEAOF")
    own_valkey.client.waitaof(num_local=1, num_replicas=0, timeout=10_000)  # the log is on the disk
    own_valkey.kill()
    own_valkey.start()

    assert own_valkey.client.get("ns:kept") == b"yes"
