"""The whole service as real processes, each of which can be killed, paused, cut off and started again.

    service.arm("worker.claimed")
    service.kill("worker-1")

Roles: `api`, `scheduler-1` …, `worker-1` … (the Celery process), `machine-1` … (its supervisor, and with it
the worker: its leases are left to expire). Whatever dies is started again at once. Redis is
`service.redis`. `launch.py` brings it up.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import httpx

from nightshift.cli.demo import DEMO_MODEL_ID
from nightshift.cli.processes.children import ChildExit
from nightshift.client import Client
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs import Job, Shard
from nightshift.objectstore import ObjectStore
from nightshift.outbound.webhooks import DeliveryState
from nightshift.process import failpoints
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.shards.leases import ExpiredLease
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.e2e.upstreams.engines import Engine
from tests.faults.kit.fake_engine import MODEL
from tests.faults.kit.processes import Footprint, Kept, children, is_running, pause, resume, send
from tests.faults.kit.proxy import FaultProxy
from tests.helpers.receiver import Receiver
from tests.helpers.upstreams import UpstreamProcess
from tests.helpers.waiting import WAIT_MAX_S, wait_for
from tests.integration.api.conftest import insert_key
from tests.integration.objectstore.s3_faults import FaultyS3
from tests.integration.servers import PostgresServer, S3Server, ValkeyServer


@dataclass(frozen=True)
class Parts:
    """Servers and processes that a service is made of."""

    database: Literal["sqlite", "postgresql"] = "sqlite"
    objects: Literal["directory", "moto", "rclone"] = "directory"
    engine: Literal["fake", "demo", "upstream", "vllm"] = "fake"
    upstreams: int = 0  # of an engine "upstream", simulated ones, or "vllm"
    workers: int = 1
    schedulers: int = 1
    durable: bool = False  # PostgreSQL waits for the disk, as SQLite always does
    proxies: frozenset[str] = frozenset()  # before which of redis, database, s3 a fault proxy stands
    s3_faults_seed: int | None = None  # given: an HTTP server stands before S3 that misbehaves as it is told
    of_role: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # settings of single processes
    are_forked: bool = True  # its processes, from one that has imported everything (`forks.py`)
    programs: frozenset[str] = frozenset()  # roles whose processes are started as programs all the same
    threads: int = 1  # of torch in a worker

    def __str__(self) -> str:
        words = (self.database, self.objects, *([self.engine] if self.engine != "fake" else []))
        return "-".join(words)

    @property
    def slower(self) -> int:
        """How many times longer things take than with the fake engine: torch and a model are to be loaded."""
        return 4 if self.engine in ("demo", "vllm") else 1


@dataclass(frozen=True, order=True)
class Stamp:
    """A fake engine was given a request, or has finished it."""

    at_ns: int  # CLOCK_MONOTONIC, which all processes of a machine share
    what: str  # added, done
    id: str  # job/shard/row@term of a row; shard id@term of an online request
    tokens: int  # that it had by then; when it was added, from an earlier attempt

    @classmethod
    def parse(cls, line: str) -> "Stamp":
        at_ns, what, id, tokens = line.split()
        return cls(int(at_ns), what, id, int(tokens))

    @property
    def row(self) -> str:
        """Without the term: the same for every attempt."""
        return self.id.partition("@")[0]

    @property
    def lease(self) -> tuple[str, int, int] | None:
        """Job, shard number and term of a bulk row; None: it is an online request."""
        place = re.match(r"(\w+)/(\d+)/\d+@(\d+)", self.id)
        return (place[1], int(place[2]), int(place[3])) if place else None


@dataclass(eq=False)
class Service:
    """A running service and everything that can be done to it."""

    folder: Path
    parts: Parts
    base_url: str
    api_key: str
    redis: ValkeyServer
    proxy: Mapping[str, FaultProxy]
    database: Database
    store: Store  # a look behind the scenes, past every proxy
    objects: ObjectStore  # likewise
    s3: S3Server | None
    s3_front: FaultyS3 | None  # where S3 can be made to refuse, hang, cut short
    postgresql: PostgresServer | None
    receiver: Receiver  # of webhooks
    environment: Mapping[str, str]  # what its processes read their settings from
    upstreams: Mapping[str, UpstreamProcess | Engine]  # by name
    bucket: str | None = None
    tenant_id: str = DEFAULT_TENANT  # whose key it is
    asked_model: str | None = None  # that its jobs name; None: the engine's own
    kept: dict[str, Kept] = field(default_factory=dict)
    exits: list[ChildExit] = field(default_factory=list)  # of kept processes, in order

    # -- clients ---------------------------------------------------------------------------------------

    def as_tenant(self, tenant_id: str) -> "Service":
        """The same service, met as another tenant."""
        return replace(self, tenant_id=tenant_id, api_key=insert_key(self.store, tenant_id))

    def asking(self, model: str) -> "Service":
        """The same service, asked for another of its models."""
        return replace(self, asked_model=model)

    # Without TLS no certificates are needed; loading them takes longer than most answers.

    def client(self) -> Client:
        transport = httpx.HTTPTransport(verify=False, trust_env=False)
        return Client(self.base_url, self.api_key, transport=transport)

    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.base_url, headers=headers, verify=False, trust_env=False)

    @property
    def model(self) -> str:
        return self.asked_model or (DEMO_MODEL_ID if self.parts.engine in ("demo", "vllm") else MODEL)

    def location(self, path: str) -> str:
        """A place for an input or output of this tenant's jobs."""
        if self.bucket is not None:
            return f"s3://{self.bucket}/{self._place(path)}"
        return (self.folder / self._place(path)).as_uri()

    def put_file(self, path: str, data: bytes) -> str:
        """Lay an input there; its location."""
        if self.s3 is not None:
            self.s3.client.put_object(Bucket=str(self.bucket), Key=self._place(path), Body=data)
        else:
            place = self.folder / self._place(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return self.location(path)

    def read_file(self, path: str) -> bytes:
        if self.s3 is not None:
            return self.s3.client.get_object(Bucket=str(self.bucket), Key=self._place(path))["Body"].read()
        return (self.folder / self._place(path)).read_bytes()

    def _place(self, path: str) -> str:
        """Among the places that the settings give to tenants."""
        return f"files/{self.tenant_id}/{path}"

    # -- faults ----------------------------------------------------------------------------------------

    def pid(self, role: str) -> int:
        """The process of a role; waited for if it has just died."""
        pids: list[int] = []

        def is_there() -> bool:
            pids[:] = self.pids(role)
            return bool(pids)

        wait_for(f"{role} is running", is_there)
        return pids[0]

    def pids(self, role: str) -> list[int]:
        """None at the moment, or one."""
        kind, _, number = role.partition("-")
        kept = self.kept[f"worker-{number}" if kind == "machine" else role].pid
        if kept is None:
            return []
        return children(kept) if kind == "worker" else [kept]

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Sends a signal to the process of a role; which one that was. A process that is no more is waited
        for: the caller means one that lives.
        """
        while not send(pid := self.pid(role), number):
            pass
        return pid

    def kill_and_wait(self, role: str) -> int:
        """SIGKILL, and see it go."""
        pid = self.kill(role)
        wait_for(f"{role} ({pid}) has gone", lambda: not is_running(pid))
        return pid

    def pause(self, role: str) -> int:
        """SIGSTOP: it holds what it holds and says nothing. All but SQLite's only lock, which would keep
        every other process waiting too: this one holds it meanwhile.
        """
        with self.store.transaction():
            pause(pid := self.pid(role))
        return pid

    def resume(self, role: str) -> None:
        resume(self.pid(role))

    def stop(self, role: str) -> int | None:
        """SIGTERM, and no other start; the exit code. Of a worker: its supervisor's."""
        return self.kept[role].stop()

    def start(self, role: str) -> None:
        self.kept[role].start()

    def restart(self, role: str) -> int | None:
        """Stops as an operator would, and starts again. Returns the exit code."""
        ended = self.stop(role)
        self.start(role)
        return ended

    def arm(self, failpoint: str) -> None:
        """The next process that comes by it kills itself."""
        assert failpoint in failpoints.NAMES, failpoint
        (self._failpoints / failpoint).touch()

    def is_armed(self, failpoint: str) -> bool:
        """Whether no process has come by yet."""
        return (self._failpoints / failpoint).exists()

    def disarm(self) -> list[str]:
        """Disarm every failpoint that no process has come by; which they were."""
        left = sorted(path.name for path in self._failpoints.iterdir())
        for name in left:
            (self._failpoints / name).unlink(missing_ok=True)
        return left

    @property
    def _failpoints(self) -> Path:
        return self.folder / "failpoints"

    def let_another_lead(self) -> None:
        """The time that a scheduler may lead without a renewal is over: a dead one is not waited for."""
        with self.database.write() as connection:
            connection.execute(tables.leadership.update().values(expires_at=self._now()))

    def let_webhooks_be_due(self) -> None:
        """The time for which a sender has a webhook to itself is over: a dead one is not waited for. One that
        lives may have its webhook sent twice.
        """
        pending = tables.delivery.c.state == DeliveryState.PENDING
        with self.database.write() as connection:
            connection.execute(tables.delivery.update().where(pending).values(next_at=self._now()))

    def _now(self) -> datetime:
        with self.store.snapshot() as tx:
            return tx.now()

    @contextmanager
    def mended(self) -> Iterator[None]:
        """The fake engines obey no magic words meanwhile."""
        mark = self.folder / "mended"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    @contextmanager
    def held(self) -> Iterator[Path]:
        """Requests that say `!wait` make no tokens meanwhile, or until the file is taken away."""
        mark = self.folder / "held"
        mark.touch()
        try:
            yield mark
        finally:
            mark.unlink(missing_ok=True)

    # -- looking ---------------------------------------------------------------------------------------

    def job(self, id: str) -> Job:
        """The record of a job."""
        with self.store.snapshot() as tx:
            return tx.jobs.fetch(id)

    def shards(self, job_id: str) -> Sequence[Shard]:
        """The shards of a job that have been planned."""
        with self.store.snapshot() as tx:
            return tx.shards.of_job(job_id, limit=1000)

    def workers(self) -> dict[str, Worker]:
        """All that there ever were, by id, the latest first."""
        with self.store.snapshot() as tx:
            return {worker.id: worker for worker in tx.workers.list()}

    def worker_of(self, pid: int) -> Worker | None:
        return next((worker for worker in self.workers().values() if worker.pid == pid), None)

    def leases(self, *worker_ids: str) -> list[ExpiredLease]:
        """The leases of these workers, or of all."""
        with self.store.snapshot() as tx:
            ids = worker_ids or [worker.id for worker in tx.workers.list()]
            return [lease for id in ids for lease in tx.leases.of_worker(id, 1000)]

    def counter(self, name: str) -> int:
        with self.store.snapshot() as tx:
            return tx.counters.values().get(name, 0)

    def wait_for_death(self, failpoint: str) -> None:
        """A process has come by an armed failpoint."""
        wait_for(f"a process reached {failpoint}", lambda: not self.is_armed(failpoint))

    def workers_ready(self) -> int:
        with self.store.snapshot() as tx:
            ready = tx.workers.list(state=WorkerState.READY)
        return sum(is_running(worker.pid) for worker in ready)

    def wait_until_ready(self) -> None:
        """The API answers, and every worker that is kept has its models."""
        workers = sum(kept.is_kept for role, kept in self.kept.items() if role.startswith("worker-"))
        with self.http() as http:
            wait_for("the API is ready", lambda: _status(http, "/readyz") == httpx.codes.OK)
        wait_for(
            f"{workers} workers are ready",
            lambda: self.workers_ready() >= workers,
            WAIT_MAX_S * self.parts.slower,
        )

    def stamps(self) -> list[Stamp]:
        """Requests that the fake engines have been given and have finished, in order."""
        path = self.folder / "stamps"
        lines = path.read_text().splitlines() if path.exists() else []
        return sorted(Stamp.parse(line) for line in lines)

    def footprints(self) -> dict[str, Footprint]:
        """Each role's memory, files and threads right now."""
        machines = [role.replace("worker", "machine") for role in self.kept if role.startswith("worker")]
        footprints = {
            role: Footprint.of_process(pid) for role in (*self.kept, *machines) for pid in self.pids(role)
        }
        return {role: footprint for role, footprint in footprints.items() if footprint is not None}

    def log(self, role: str) -> str:
        return self.kept[role].log_path.read_text(errors="replace")

    def logs(self) -> str:
        """The end of each process's log."""
        return "\n".join(f"--- {role}\n{self.log(role)[-3000:]}" for role in self.kept)


def _status(http: httpx.Client, path: str) -> int | None:
    try:
        return http.get(path).status_code
    except httpx.TransportError:
        return None
