"""The metrics of all processes of one machine on one page: each is asked on its socket, at every scrape.

One that does not answer is missing and named; the page is there without it.
"""

import logging
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from http.client import OK, HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest

from api.metrics.merging import NotMetrics, Page, merged, parsed
from nightshift.process.metrics import service
from nightshift.process.metrics.family import new_registry

log = logging.getLogger(__name__)

API: Final = "api"
READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class ScrapeConfig:
    answer_s: float = 2.0  # Prometheus waits for 10 s by default
    page_bytes_max: int = 8 * 1024 * 1024
    threads_max: int = 16  # a machine has at most 64 workers, and each answers within milliseconds


class Processes:
    """Call `close` at the end. Thread-safe."""

    def __init__(self, sockets: Sequence[Path], config: ScrapeConfig = ScrapeConfig()) -> None:
        """A process is called as its socket's file is: `worker-1.sock`."""
        self._sockets = {path.stem: path for path in sockets}
        self._config = config
        threads = max(1, min(config.threads_max, len(self._sockets)))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="scrape")

    def page(self, own: CollectorRegistry) -> bytes:
        """With this process's own metrics, which may block on the database."""
        asked = {name: self._threads.submit(self._asked, name, path) for name, path in self._sockets.items()}
        pages = [parsed(Page(API, generate_latest(own).decode()))]
        wait(asked.values(), timeout=2 * self._config.answer_s)
        found = {name: _result(future) for name, future in asked.items()}
        pages += [page for page in found.values() if page is not None]
        is_up = {API: True} | {name: page is not None for name, page in found.items()}
        return merged([*pages, parsed(Page(API, _up(is_up)))]).encode()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _asked(self, name: str, path: Path) -> dict[str, Any] | None:
        """None: it has no metrics to show."""
        try:
            return parsed(Page(name, self._read(path)))
        except (OSError, HTTPException, NotMetrics, UnicodeDecodeError) as error:
            log.info(
                "a process shows no metrics",
                extra={"action": "metrics_missing", "child": name, "reason": str(error)},
            )
            return None

    def _read(self, path: Path) -> str:
        ends_at_s = time.monotonic() + self._config.answer_s
        with closing(_UnixConnection(path, self._config.answer_s)) as connection:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            if answer.status != OK:
                raise NotMetrics(f"it answered {answer.status}")
            body = bytearray()
            while chunk := answer.read1(READ_BYTES):
                body += chunk
                if len(body) > self._config.page_bytes_max or time.monotonic() > ends_at_s:
                    raise NotMetrics("it is too long, or too slow")
        return body.decode()


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)  # closed with the connection
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _result(future: "Future[dict[str, Any] | None]") -> dict[str, Any] | None:
    return future.result() if future.done() and not future.cancelled() else None


def _up(is_up: dict[str, bool]) -> str:
    registry = new_registry()
    gauge = service.PROCESS_UP.counted(registry)
    for name, up in is_up.items():
        gauge.labels(name).set(float(up))
    return generate_latest(registry).decode()
