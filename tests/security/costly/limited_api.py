"""The API as a process of limited memory, and what a request costs it: memory, CPU, a still event loop.

`/healthz` is asked all the while, on a connection of its own.
"""

import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from nightshift.process.settings import DataSettings
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.helpers.databases import migrated_sqlite
from tests.integration.api.conftest import insert_key
from tests.integration.servers import ValkeyServer
from tests.security.costly.api_child import LONGEST
from tests.security.costly.children import MIB

MEMORY_BYTES: Final = 512 * MIB  # beyond what it has when it is idle: the stacks of its threads are in it
TIMEOUT_S: Final = 60.0
WARM_UP: Final = 5
_TICKS_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """The cost of a request, from its first byte to its answer."""

    status: int
    answer: str
    memory_bytes: int  # the most that was resident, beyond what the idle process has
    cpu_s: float  # of all threads
    blocked_s: float  # of CPU time, for which the event loop stood still at most


@dataclass
class LimitedApi:
    url: str
    key: str
    store: Store  # behind it
    folder: Path  # its tenant's place
    _process: subprocess.Popen[str]
    _longest: mmap.mmap
    health_s: list[float] = field(default_factory=list)  # how long each answer of /healthz took
    _idle_bytes: int = 0

    def ask(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Cost:
        """Sends a request and see what it costs."""
        cpu_s = self._cpu_s()
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")  # the peak is counted from here
        LONGEST.pack_into(self._longest, 0, 0.0)
        with self.client() as client:
            answer = client.request(method, path, content=content, headers=headers)
        return Cost(
            answer.status_code,
            answer.text,
            self._resident("VmHWM") - self._idle_bytes,
            self._cpu_s() - cpu_s,
            LONGEST.unpack_from(self._longest)[0],
        )

    @property
    def is_alive(self) -> bool:
        with self.client() as client:
            return client.get("/healthz").is_success

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        # A connection per request: the server closes one whose body it refuses to read.
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, trust_env=False, limits=limits
        )

    def limit_memory(self) -> None:
        """Limits memory from here on to what the process has now and `MEMORY_BYTES`."""
        self._idle_bytes = self._resident("VmRSS")
        limit = self._resident("VmData") + MEMORY_BYTES
        resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (limit, limit))

    def _resident(self, what: str) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        [kib] = [line.split()[1] for line in lines if line.startswith(f"{what}:")]
        return int(kib) * 1024

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICKS_S


@contextmanager
def limited_api(**settings: str) -> Iterator[LimitedApi]:
    """It runs as long as the block; `settings` are without NIGHTSHIFT_."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ns-")))
        valkey = ValkeyServer(folder)
        valkey.start()
        stack.callback(valkey.kill)
        data = DataSettings(data_dir=folder / "data")
        migrated_sqlite(data.data_dir / "nightshift.db").close()
        store = Store(Database(data.resolved_database_url))
        stack.callback(store.close)
        (folder / "place").mkdir()
        words = {
            "DATA_DIR": str(data.data_dir),
            "REDIS_URL": valkey.settings.redis_url,
            "FILE_ROOTS": f"alpha={folder / 'place'}",
            **settings,
        }
        api = stack.enter_context(
            _started(folder, {f"NIGHTSHIFT_{name}": word for name, word in words.items()})
        )
        process, port, longest = api
        limited = LimitedApi(
            f"http://127.0.0.1:{port}", insert_key(store, "alpha"), store, folder / "place", process, longest
        )
        stack.enter_context(_asking_healthz(limited))
        limited.ask("GET", "/v1/jobs?limit=1")  # makes the OpenAPI document
        for _ in range(WARM_UP):
            limited.ask("POST", "/v1/chat/completions", b"{}")
            limited.ask("GET", "/v1/jobs")
        limited.limit_memory()
        yield limited


@contextmanager
def _started(
    folder: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], int, mmap.mmap]]:
    noted = folder / "blocked"
    noted.write_bytes(bytes(LONGEST.size))
    command = (sys.executable, "-m", "tests.security.costly.api_child", str(noted))
    with noted.open("r+b") as file, (folder / "api.log").open("wb") as log:
        longest = mmap.mmap(file.fileno(), LONGEST.size)
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None, "it is a pipe"
    try:
        yield process, int(process.stdout.readline()), longest
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def _asking_healthz(api: LimitedApi) -> Iterator[None]:
    stop = threading.Event()
    with httpx.Client(base_url=api.url, timeout=TIMEOUT_S, trust_env=False) as client:

        def ask() -> None:
            while not stop.wait(0.01):
                began_s = time.monotonic()
                client.get("/healthz").raise_for_status()
                api.health_s.append(time.monotonic() - began_s)

        thread = threading.Thread(target=ask, name="healthz")
        client.get("/healthz").raise_for_status()
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
