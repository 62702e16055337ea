"""A server that accepts connections and then says nothing delays doctor by one check's time, and no more."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.faults.kit.proxy import Blackhole, proxied
from tests.integration import servers
from tests.integration.servers import S3Server, ValkeyServer, tool

LIMIT_S = 10.0  # a busy machine imports for long, in the time of the first check
LONG_S = 120.0  # what a hang would cost by the parts' own limits is more: S3 is asked five times


def doctor(folder: Path, **settings: str) -> dict[str, str]:
    """The status of each id but the models'. The command is a process, since it must end, too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")}
    settings = {
        "NIGHTSHIFT_DATA_DIR": str(folder / "data"),
        "NIGHTSHIFT_SPOT_PROVIDER": "none",
        "NIGHTSHIFT_BASE_URL": f"http://127.0.0.1:{servers.free_port()}",
        "NIGHTSHIFT_MODELS": "/nowhere/model",  # so that no process imports torch
    } | settings
    ended = subprocess.run(
        [tool("nightshift"), "doctor", "--json", "--timeout", str(LIMIT_S)],
        capture_output=True,
        text=True,
        env=environment | settings,
        cwd=folder,
        timeout=LONG_S,
    )
    assert ended.stderr == ""
    assert ended.returncode == 1
    results = json.loads(ended.stdout)
    return {result["id"]: result["status"] for result in results if not result["id"].startswith("model.")}


def test_a_store_that_hangs(moto_server: S3Server, tmp_path: Path):
    bucket = moto_server.new_bucket()
    with proxied(moto_server.port) as proxy:
        proxy.set(Blackhole())
        statuses = doctor(
            tmp_path,
            **moto_server.environment() | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"},
            NIGHTSHIFT_STORAGE_URL=f"s3://{bucket}",
        )
    assert statuses["storage"] == "error"
    assert {id for id, status in statuses.items() if status == "error"} == {"storage"}
    assert statuses["storage.latency"] == statuses["retention"] == "skipped"


def test_a_database_that_hangs(tmp_path: Path):
    with tempfile.TemporaryDirectory(prefix="ns-") as folder, servers.postgresql(Path(folder)) as server:
        with proxied(server.socket) as proxy:
            proxy.set(Blackhole())
            statuses = doctor(
                tmp_path,
                NIGHTSHIFT_DATABASE_URL=f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres",
            )
    assert {id for id, status in statuses.items() if status == "error"} == {"database"}
    assert statuses["database.schema"] == statuses["scheduler"] == statuses["workers"] == "skipped"
    assert statuses["storage"] == "ok"


@pytest.mark.exhaustive
def test_a_redis_that_hangs(own_valkey: ValkeyServer, tmp_path: Path):
    own_valkey.freeze()
    statuses = doctor(tmp_path, NIGHTSHIFT_REDIS_URL=own_valkey.settings.redis_url)
    own_valkey.thaw()
    assert {id for id, status in statuses.items() if status == "error"} == {"queue"}
    assert statuses["queue.clock"] == "skipped"


@pytest.mark.exhaustive
def test_a_server_that_hangs(tmp_path: Path, own_valkey: ValkeyServer):
    with proxied(own_valkey.socket) as proxy:
        proxy.set(Blackhole())
        statuses = doctor(tmp_path, NIGHTSHIFT_BASE_URL=f"http://127.0.0.1:{proxy.port}")
    assert {id for id, status in statuses.items() if status == "error"} == {"server"}
    assert statuses["service"] == "skipped"
