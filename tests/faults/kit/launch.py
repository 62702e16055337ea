"""Brings the whole service up for a test, on servers of its own, and ends it.

    with running(folder, Parts(database="postgresql", workers=3), SEGMENT_ROWS="8") as service:

What can then be done to it: `service.py`.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.cli.demo import demo_model_path
from nightshift.cli.processes import embedded
from nightshift.cli.processes.supervisor import run_program
from nightshift.objectstore import open_store
from nightshift.process.settings import DataSettings
from nightshift.store import Store, open_database
from tests.e2e.upstreams import engines
from tests.faults.kit.fake_engine import MODEL
from tests.faults.kit.forks import fork_server
from tests.faults.kit.processes import Kept, children, send
from tests.faults.kit.proxy import FaultProxy, proxied
from tests.faults.kit.service import Parts, Service
from tests.helpers.receiver import receiver, says
from tests.helpers.upstreams import Settings as Upstream
from tests.helpers.upstreams import UpstreamProcess
from tests.integration import servers
from tests.integration.objectstore.s3_faults import FaultyS3, faulty_s3
from tests.integration.servers import HOST, PostgresServer, S3Server, ValkeyServer, free_port

# Everything that is waited for, at a sixth to a third of what it is in production.
SCALED: Final = {
    "LEASE_TTL_S": "6",
    "LEASE_TRUST_S": "4",
    "HEARTBEAT_S": "1",
    "RING_AFTER_S": "3",
    "LEADER_TTL_S": "5",
    "LEADER_TRUST_S": "3.5",
    "LEADER_ATTEMPT_S": "1",
    "SEGMENT_ROWS": "8",
    "SEGMENT_SPACING_S": "0",
    "SEGMENT_INTERVAL_S": "0.5",
    "SHARD_BYTES": "4096",
    "SHARDS_PER_PAGE_MAX": "2",
    "ENGINE_MAX_NUM_SEQS": "16",
    "FAKE_POLL_S": "1",
    "FAKE_ONLINE_DRAIN_S": "4",
}
UPSTREAM: Final = Upstream(models=(MODEL,), slots=16, step_s=0.02)
ROLE: Final = "NIGHTSHIFT_ROLE"  # tells a process, and what it starts, whose it is
ROOT: Final = Path(__file__).resolve().parents[3]


@contextmanager
def running(folder: Path, parts: Parts = Parts(), **settings: str) -> Iterator[Service]:
    """The service, ready; killed at the end if it is still there. `settings` are NIGHTSHIFT_ variables
    without their prefix, on top of `SCALED`.
    """
    with ExitStack() as stack:
        fork = fork_server(with_engine=parts.engine == "demo").spawn if parts.are_forked else run_program
        service = _prepare(folder, parts, settings, stack)
        for role, command in _commands(service).items():
            grace_s = 40.0 if role.startswith("worker") else 10.0
            log_path = folder / "logs" / f"{role}.log"
            own = {f"NIGHTSHIFT_{name}": word for name, word in parts.of_role.get(role, {}).items()}
            environment = {**service.environment, ROLE: role, **own}
            spawn = run_program if role in parts.programs else fork
            kept = Kept(role, command, environment, log_path, grace_s, service.exits.append, spawn)
            service.kept[role] = kept
            stack.callback(_end, service, role)
            kept.start()
        try:
            service.wait_until_ready()
            yield service
        except BaseException as error:
            error.add_note(service.logs())
            raise


def _commands(service: Service) -> dict[str, tuple[str, ...]]:
    """Processes by role, in the order in which they start; they are stopped in the reverse one."""
    python = (sys.executable, "-P", "-m")
    api = (*python, "uvicorn", "api.app:create_app", "--factory", "--app-dir", str(ROOT), "--host", HOST)
    api += ("--port", service.base_url.rpartition(":")[2], "--no-access-log", "--log-level", "warning")
    api += ("--http", "api.middleware.connections:BoundedHttp", "--backlog", "1024")
    worker = (*python, "tests.faults.kit.worker_process")
    if service.parts.engine != "fake":
        worker = (*worker, "real") if service.parts.are_forked else (*python, "nightshift.cli.main", "worker")
    return {
        "api": (*api, "--timeout-graceful-shutdown", "5"),
        **{f"scheduler-{n}": (*python, "scheduler") for n in range(1, service.parts.schedulers + 1)},
        **{f"worker-{n}": worker for n in range(1, service.parts.workers + 1)},
    }


def _end(service: Service, role: str) -> None:
    """Ends processes without waiting for a drain, as at the end of a test."""
    kept = service.kept[role]
    if not kept.is_kept:
        return
    if (pid := kept.pid) is not None:
        for beneath in (pid, *children(pid)):
            send(beneath, signal.SIGCONT)
    kept.kill_and_stop()


@dataclass(frozen=True)
class _Ground:
    """Servers that the service uses, and proxies between the two."""

    redis: ValkeyServer
    postgresql: PostgresServer | None
    s3: S3Server | None
    bucket: str | None
    proxy: Mapping[str, FaultProxy]
    s3_front: FaultyS3 | None
    upstreams: Mapping[str, UpstreamProcess | engines.Engine]

    @property
    def storage_url(self) -> str:
        return f"s3://{self.bucket}/nightshift" if self.bucket is not None else ""

    @property
    def database_url(self) -> str:
        """Straight to it; empty for SQLite."""
        return self.postgresql.url() if self.postgresql is not None else ""


def _prepare(folder: Path, parts: Parts, settings: Mapping[str, str], stack: ExitStack) -> Service:
    """Everything but the processes that are ours."""
    for name in ("data", "files", "logs", "failpoints"):
        (folder / name).mkdir()
    ground = _lay_ground(folder, parts, stack)
    data = DataSettings(
        data_dir=folder / "data", database_url=ground.database_url, storage_url=ground.storage_url
    )
    key_file = embedded.set_up_database(data)
    database = open_database(data)
    store = Store(database)
    stack.callback(store.close)
    objects = open_store(data.resolved_storage_url)
    stack.callback(objects.close)
    base_url = f"http://{HOST}:{free_port()}"
    return Service(
        folder=folder,
        parts=parts,
        base_url=base_url,
        api_key=key_file.read_text(),
        redis=ground.redis,
        proxy=ground.proxy,
        database=database,
        store=store,
        objects=objects,
        s3=ground.s3,
        s3_front=ground.s3_front,
        postgresql=ground.postgresql,
        receiver=stack.enter_context(receiver(says(200))),
        environment=_environment(folder, parts, data, ground, {"BASE_URL": base_url, **settings}),
        upstreams=ground.upstreams,
        bucket=ground.bucket,
    )


def _lay_ground(folder: Path, parts: Parts, stack: ExitStack) -> _Ground:
    """Starts the servers that the service needs, with a bucket, and what is to stand before them."""
    redis = ValkeyServer(_near(stack))
    stack.callback(redis.kill)
    redis.start()
    stack.callback(redis.client.close)
    addresses: dict[str, int | Path] = {"redis": redis.socket}
    postgresql = s3 = bucket = s3_front = None
    if parts.database == "postgresql":
        postgresql = stack.enter_context(servers.postgresql(_near(stack), durable=parts.durable))
        addresses["database"] = postgresql.socket
    if parts.objects != "directory":
        s3 = stack.enter_context({"moto": servers.moto, "rclone": servers.rclone}[parts.objects](folder))
        addresses["s3"] = s3.port
        stack.enter_context(s3.in_environment())
        bucket = s3.new_bucket()
    assert parts.proxies <= addresses.keys(), f"no proxy stands before {parts.proxies - addresses.keys()}"
    proxy = {name: stack.enter_context(proxied(addresses[name])) for name in sorted(parts.proxies)}
    if parts.s3_faults_seed is not None:
        assert s3 is not None, "a directory does not speak HTTP"
        s3_front = stack.enter_context(faulty_s3(s3, parts.s3_faults_seed))
    upstreams = {
        f"upstream-{number + 1}": stack.enter_context(
            engines.vllm(free_port(), folder / "logs")
            if parts.engine == "vllm"
            else UpstreamProcess(UPSTREAM)
        )
        for number in range(parts.upstreams)
    }
    return _Ground(redis, postgresql, s3, bucket, proxy, s3_front, upstreams)


def _near(stack: ExitStack) -> Path:
    """A folder with a short path: that of a unix socket may have 107 bytes."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ns-")))


def _environment(
    folder: Path, parts: Parts, data: DataSettings, ground: _Ground, settings: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the service's processes. `settings` have the last word."""
    words = {
        **SCALED,
        "DATA_DIR": str(data.data_dir),
        "DATABASE_URL": data.resolved_database_url,
        "STORAGE_URL": data.resolved_storage_url,
        "REDIS_URL": ground.redis.settings.redis_url,
        **_models(parts, ground),
        "FILE_ROOTS": f"{folder}/files/{{tenant}}",
        "S3_BUCKETS": f"{ground.bucket}/files/{{tenant}}" if ground.bucket else "",
        "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
        "WEBHOOK_PORTS": "1-65535",
        "LOG_FORMAT": "human",
        "SPOT_PROVIDER": "none",
        "FAILPOINT_DIR": str(folder / "failpoints"),
        "FAKE_STAMPS": str(folder / "stamps"),
        "FAKE_MENDED": str(folder / "mended"),
        "FAKE_HELD": str(folder / "held"),
        **({"ENGINE_PROCESS": "false"} if parts.are_forked else {}),  # its process imports everything anew
        **_detours(ground.proxy),
        **settings,
    }
    environment = {f"NIGHTSHIFT_{name}": word for name, word in words.items()}
    return (
        environment
        | _detour_to_s3(ground)
        | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": str(parts.threads),
        }
    )


def _models(parts: Parts, ground: _Ground) -> dict[str, str]:
    match parts.engine:
        case "fake":
            return {"MODELS": MODEL}
        case "demo":
            return {"MODELS": str(demo_model_path()), "DETERMINISTIC": "true"}  # the oracle compares bytes
        case "upstream" | "vllm":
            return {"UPSTREAMS": ",".join(upstream.url for upstream in ground.upstreams.values())}


def _detours(proxy: Mapping[str, FaultProxy]) -> dict[str, str]:
    """Settings that lead to a server by way of the proxy before it."""
    words = {}
    if "redis" in proxy:
        words["REDIS_URL"] = f"redis://{HOST}:{proxy['redis'].port}/0"
    if "database" in proxy:
        words["DATABASE_URL"] = f"postgresql+psycopg://postgres@{HOST}:{proxy['database'].port}/postgres"
    return words


def _detour_to_s3(ground: _Ground) -> dict[str, str]:
    """The same for AWS's own library."""
    if ground.s3_front is not None:
        return {"AWS_ENDPOINT_URL": ground.s3_front.server().endpoint}
    if "s3" in ground.proxy:
        return {"AWS_ENDPOINT_URL": f"http://{HOST}:{ground.proxy['s3'].port}"}
    return {}
