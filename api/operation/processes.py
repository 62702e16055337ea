"""The metrics of all processes of one machine: each is asked on its socket at every scrape.

A process that does not answer is missing and named.
"""

import logging
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from http.client import OK, HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest

from nightshift.process.metrics import service
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.processes import NAMES

log = logging.getLogger(__name__)

_ABOUT: Final = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) ")
_SAMPLE: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class NotMetrics(Exception):
    """The text is no exposition of metrics."""


@dataclass(frozen=True)
class Exposition:
    """The metrics of one process in Prometheus' text format."""

    process: str  # "worker-1"
    text: str

    def labels(self, metric: str) -> Mapping[str, str]:
        """The labels that tell its samples from those of other processes."""
        if metric in NAMES:
            return {"process": self.process}
        return {"worker": self.process} if self.process.startswith("worker-") else {}


@dataclass
class _Metric:
    about: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def parsed(exposition: Exposition) -> dict[str, _Metric]:
    """The metrics by name, with the labels of the process. Raises NotMetrics."""
    metrics: dict[str, _Metric] = {}
    name = ""
    for line in exposition.text.split("\n"):  # a label's value may have other separators of lines
        about = _ABOUT.match(line)
        if about is not None:
            if about[2] != name:
                name = about[2]
                labels = _rendered(exposition.labels(name))
            metrics.setdefault(name, _Metric()).about.append(line)
        elif line and not line.startswith("#"):
            if not name or not line.startswith(name):
                raise NotMetrics(f"no metric's sample: {line[:80]!r}")
            metrics[name].samples.append(_with_labels(line, labels) if labels else line)
    return metrics


def merged(expositions: Iterable[dict[str, _Metric]]) -> str:
    """The metrics of several processes as one exposition. Descriptions are those of the first."""
    whole: dict[str, _Metric] = {}
    for metrics in expositions:
        for name, metric in metrics.items():
            there = whole.setdefault(name, _Metric(metric.about))
            there.samples.extend(metric.samples)
    lines = (line for metric in whole.values() for line in (*metric.about, *metric.samples))
    return "\n".join((*lines, ""))


def _with_labels(line: str, labels: str) -> str:
    """The line with labels before those it has."""
    name = _SAMPLE.match(line)
    if name is None:
        raise NotMetrics(f"no sample: {line[:80]!r}")
    end = name.end()
    if line[end : end + 1] == "{":
        rest = line[end + 1 :]
        return f"{line[:end]}{{{labels}{'' if rest.startswith('}') else ','}{rest}"
    return f"{line[:end]}{{{labels}}}{line[end:]}"


def _rendered(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


API: Final = "api"
READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class ScrapeConfig:
    answer_s: float = 2.0  # Prometheus waits for 10 s by default
    exposition_bytes_max: int = 8 * 1024 * 1024
    threads_max: int = 16  # a machine has at most 64 workers, and each answers within milliseconds


class Processes:
    """Scrapes the processes of one machine. Thread-safe; call `close` at the end."""

    def __init__(self, sockets: Sequence[Path], config: ScrapeConfig = ScrapeConfig()) -> None:
        """A process is called as its socket's file is: `worker-1.sock`."""
        self._sockets = {path.stem: path for path in sockets}
        self._config = config
        threads = max(1, min(config.threads_max, len(self._sockets)))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="scrape")

    def exposition(self, own: CollectorRegistry) -> bytes:
        """The exposition of all processes. This process's own metrics may block on the database."""
        futures = {
            name: self._threads.submit(self._scrape, name, path) for name, path in self._sockets.items()
        }
        expositions = [parsed(Exposition(API, generate_latest(own).decode()))]
        wait(futures.values(), timeout=2 * self._config.answer_s)
        scraped = {name: _result(future) for name, future in futures.items()}
        expositions += [metrics for metrics in scraped.values() if metrics is not None]
        is_up = {API: True} | {name: metrics is not None for name, metrics in scraped.items()}
        return merged([*expositions, parsed(Exposition(API, _up(is_up)))]).encode()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _scrape(self, name: str, path: Path) -> dict[str, Any] | None:
        """The metrics of the process. None: it has no metrics to show."""
        try:
            return parsed(Exposition(name, self._read(path)))
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
                if len(body) > self._config.exposition_bytes_max or time.monotonic() > ends_at_s:
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
