"""The parts of a service on one machine: their files, their addresses and their command lines.

    DATA_DIR/    nightshift.db  objects/  valkey/  metrics/  logs/  files/  api_key  secret_key  up.lock

A database or Redis named in the operator's environment replaces the embedded one.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nightshift.cli.processes import valkey
from nightshift.cli.processes.children import Child, Launch
from nightshift.cli.processes.gpus import WHOLE_MACHINE, WorkerShare
from nightshift.cli.processes.worker_child import DRAIN_MARGIN_S
from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import Checkpoint
from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.lifecycle.recovery import release_worker
from nightshift.lifecycle.tenants import Administration
from nightshift.objectstore.directory_files import make_directory
from nightshift.process.settings import (
    DataSettings,
    LocationSettings,
    LogSettings,
    QueueSettings,
    SchedulerSettings,
    SubmissionSettings,
    WorkerSettings,
)
from nightshift.store import Store, open_database
from nightshift.store.databases.migrate import upgrade
from nightshift.tenants.audit import Actor
from nightshift.tenants.keys import API_KEY_FILE, DEFAULT_TENANT, key_id

SCHEDULER: Final = "scheduler"
SOCKET_PATH_BYTES_MAX: Final = 100  # the kernel allows 107
API_SHUTDOWN_S: Final = 5  # answers in progress may take this long
API_GRACE_S: Final = 10.0

# Where the four packages are installed; uvicorn would otherwise look in the working directory.
PACKAGES: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class Redis:
    """The URL of Redis, and its command if it is embedded."""

    url: str
    command: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The decisions made before the first process starts."""

    data: DataSettings
    models: tuple[Checkpoint, ...]
    lazy_models: tuple[Checkpoint, ...]
    upstreams: tuple[str, ...] = ()
    """Entries of the setting, in place of models."""
    redis: Redis
    host: str
    port: int
    workers: Sequence[WorkerShare]
    file_roots: tuple[str, ...]
    webhook_cidrs: tuple[str, ...]
    sockets: Path
    """The directory in which the scheduler and the workers show their metrics, to the API."""

    @property
    def base_url(self) -> str:
        """The API's address from this machine, whatever interface it listens on."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def log_settings(self) -> LogSettings:
        """The operator's, with `auto` meaning human-readable: the logs of one machine are files."""
        chosen = LogSettings()
        return chosen.model_copy(update={"log_format": "human"}) if chosen.log_format == "auto" else chosen

    @property
    def logs(self) -> Path:
        return self.data.data_dir / "logs"

    @property
    def key_file(self) -> Path:
        return self.data.data_dir / API_KEY_FILE

    def environment(self) -> dict[str, str]:
        """The settings of all processes."""
        words = {
            "DATA_DIR": str(self.data.data_dir),
            "DATABASE_URL": self.data.resolved_database_url,
            "STORAGE_URL": self.data.resolved_storage_url,
            "REDIS_URL": self.redis.url,
            "MODELS": ",".join(model.reference for model in self.models),
            "LAZY_MODELS": ",".join(model.reference for model in self.lazy_models),
            "UPSTREAMS": ",".join(self.upstreams),
            "BASE_URL": os.environ.get("NIGHTSHIFT_BASE_URL") or self.base_url,
            "READY_NEEDS_WORKER": "1",
            "FILE_ROOTS": ",".join(self.file_roots),
            "WEBHOOK_ALLOW_CIDRS": ",".join(self.webhook_cidrs),
            "LOG_FORMAT": self.log_settings.log_format,
        }
        return {f"NIGHTSHIFT_{name}": value for name, value in words.items()}

    def stages(self) -> list[list[Child]]:
        """The processes in the order they start. They stop in reverse, so a worker hands its work back
        first.
        """
        python = (sys.executable, "-P", "-m")  # -P: import nothing from the working directory
        api = (
            *(*python, "uvicorn", "api.app:create_app", "--factory", "--app-dir", str(PACKAGES)),
            *("--host", self.host, "--port", str(self.port), "--no-access-log", "--log-level", "warning"),
            *("--http", "api.middleware.connections:BoundedHttp", "--backlog", "1024"),
            *("--timeout-graceful-shutdown", str(API_SHUTDOWN_S)),
        )
        worker = (*python, "nightshift.cli.main", "worker")
        worker_grace_s = WorkerSettings().drain_s + 2 * DRAIN_MARGIN_S
        workers = {f"worker-{number}": share for number, share in enumerate(self.workers, start=1)}
        sockets = ",".join(str(self._socket(name)) for name in (SCHEDULER, *workers))
        return [
            [self._child("valkey", self.redis.command)] if self.redis.command else [],
            [
                self._child("api", api, API_GRACE_S, {"NIGHTSHIFT_METRICS_SOCKETS": sockets}),
                self._showing(SCHEDULER, (*python, "scheduler")),
            ],
            [self._showing(name, worker, worker_grace_s, share) for name, share in workers.items()],
        ]

    def _showing(
        self,
        name: str,
        command: tuple[str, ...],
        grace_s: float = 10.0,
        share: WorkerShare = WHOLE_MACHINE,
    ) -> Child:
        """A child whose metrics the API shows."""
        socket = {"NIGHTSHIFT_METRICS_SOCKET": str(self._socket(name))}
        return self._child(name, command, grace_s, {**share.environment, **socket}, share.cpus)

    def _socket(self, name: str) -> Path:
        return self.sockets / f"{name}.sock"

    def _child(
        self,
        name: str,
        command: tuple[str, ...],
        grace_s: float = 10.0,
        also: Mapping[str, str] = MappingProxyType({}),
        cpus: frozenset[int] = frozenset(),
    ) -> Child:
        launch = Launch(command, {**self.environment(), **also}, cpus)
        return Child(name=name, launch=lambda: launch, grace_s=grace_s, log_path=self.logs / f"{name}.log")


@contextlib.contextmanager
def held(data_dir: Path) -> Iterator[None]:
    """Creates and locks the data directory.

    Raises ConfigurationError when another `nightshift up` holds it or it cannot be created.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (data_dir / "up.lock").open("a+")
    except OSError as error:
        raise ConfigurationError(f"{data_dir} cannot be used: {error.strerror}", param="data-dir") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise ConfigurationError(
                f"{data_dir} is in use by another `nightshift up` (process {lock.read().strip()}): "
                "stop it, or name another directory",
                param="data-dir",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def usable_port(host: str, port: int) -> int:
    """`port` if it is free, or a free one for 0. Raises ConfigurationError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        advice = (
            "name an address of this machine" if is_host else "stop what listens there, or choose another"
        )
        option = "host" if is_host else "port"
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on ({error.strerror}): {advice} with --{option}", param=option
        ) from error


@contextlib.contextmanager
def embedded_redis(data: DataSettings) -> Iterator[Redis]:
    """The operator's Redis, or an embedded Valkey on a socket that only this user can open.

    Raises ConfigurationError when there is no server to run.
    """
    queue = QueueSettings()
    if "redis_url" in queue.model_fields_set:
        yield Redis(url=queue.redis_url, command=None)
        return
    directory = data.data_dir / "valkey"
    directory.mkdir(mode=0o700, exist_ok=True)
    with _short_directory(directory, "valkey.sock") as near:
        command = valkey.command_line(directory, socket=near / "valkey.sock")
        yield Redis(url=f"redis+socket://{near / 'valkey.sock'}", command=tuple(command))


def allowed_file_roots(data: DataSettings) -> tuple[str, ...]:
    """The directories that jobs may name: the operator's, or the working directory and DATA_DIR/files.

    The data directory itself is not allowed: it holds keys.
    """
    chosen = LocationSettings().file_roots
    if chosen:
        return chosen
    files = data.files_dir
    make_directory(files, LocationSettings().output_umask)
    here = Path.cwd()
    return (str(files),) if here == Path(here.anchor) else (str(here), str(files))


def allowed_webhook_cidrs() -> tuple[str, ...]:
    """The private networks that webhooks may reach: those that the operator names, whatever the host."""
    return SubmissionSettings().webhook_allow_cidrs


def set_up_database(data: DataSettings) -> Path:
    """Migrate the schema and ensure a valid key. Returns the path of the key."""
    database = open_database(data)
    store = Store(database)
    try:
        upgrade(database)
        if database.is_sqlite:
            release_predecessors(store)
        return ensure_key(store, data.data_dir / API_KEY_FILE)
    finally:
        database.close()


def release_predecessors(store: Store) -> int:
    """Releases what workers held when this machine stopped. Returns the number of shards.

    Safe only while the data directory is locked: then no worker of this database is alive.
    """
    with store.transaction() as tx:
        now = tx.now()
        dead = [worker.id for worker in tx.workers.list() if worker.state is not WorkerState.STOPPED]
        attempts_max = SchedulerSettings().attempts_max
        return sum(
            release_worker(tx, worker_id, attempts_max, now, ExitCause.KILLED).shards for worker_id in dead
        )


def ensure_key(store: Store, path: Path) -> Path:
    """Writes a key to a file that only this user can read, and its hash to the database."""
    if path.exists() and _admits(store, path.read_text().strip()):
        return path
    with store.transaction() as tx:
        administration = Administration(tx, Actor.of_user())
        administration.ensure_tenant(DEFAULT_TENANT)
        key = administration.create_key(DEFAULT_TENANT, name="nightshift up").key
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(key)  # without a newline: the file is the key
    fresh.replace(path)
    return path


def _admits(store: Store, key: str) -> bool:
    found_id = key_id(key)
    if found_id is None:
        return False
    with store.snapshot() as tx:
        stored = tx.keys.find(found_id)
        return stored is not None and stored.admits(key, tx.now())


@contextlib.contextmanager
def metrics_sockets(data: DataSettings) -> Iterator[Path]:
    """A directory that only this user can open."""
    directory = data.data_dir / "metrics"
    directory.mkdir(mode=0o700, exist_ok=True)
    with _short_directory(directory, f"{SCHEDULER}.sock") as near:
        yield near


@contextlib.contextmanager
def _short_directory(preferred: Path, socket: str) -> Iterator[Path]:
    """The preferred directory for sockets with such names, or a temporary one whose path is shorter, and can
    stand in a list.
    """
    if len(os.fsencode(preferred / socket)) <= SOCKET_PATH_BYTES_MAX and "," not in str(preferred):
        yield preferred
        return
    near = Path(tempfile.mkdtemp(prefix="nightshift-", dir="/tmp"))
    try:
        yield near
    finally:
        shutil.rmtree(near, ignore_errors=True)
