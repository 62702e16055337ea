"""Requests accepted per second beside a bare FastAPI and Celery application, with a short and a long queue.

Ours commits each job to the database, on disk, before it answers; the bare one answers when Redis has the
message, which is on disk within a second. Both are one uvicorn process on one Valkey, and nothing takes from
the queue. The same requests go over the same number of connections; they take turns.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.reliability.services import Database, service_on
from benchmarks.report import Figure
from tests.faults.kit.fake_engine import MODEL
from tests.integration.servers import HOST, ValkeyServer, free_port, running

CONNECTIONS = 16
WARM_UP = 200
DEEP = 10_000
ROUNDS = 3
GOAL = 0.5  # times the bare application's
MANY = str(10**9)
BODY = {
    "endpoint": "chat",
    "body": {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]},
}


def measure(database: Database, requests: int) -> Iterator[Figure]:
    limits: dict[str, Any] = {"ONLINE_QUEUE_MAX": MANY, "ONLINE_QUEUE_TOTAL_MAX": MANY, "MODELS": MODEL}
    limits["FAILPOINT_DIR"] = ""  # the tests' own, which a request looks into three times
    with service_on(database, workers=0, **limits) as service, _bare(service.folder) as bare_url:
        ours = (service.base_url, service.api_key)
        bare = (bare_url, "")
        for url, key in (ours, bare):
            rate(url, key, WARM_UP)
        for name in (f"queue of up to {ROUNDS * requests:,}", f"queue from {DEEP:,} on"):
            rates = [(rate(*ours, requests), rate(*bare, requests)) for _ in range(ROUNDS)]
            yield Figure(f"{name}: ours", median(own for own, _ in rates), "requests/s")
            yield Figure("  FastAPI and Celery's delay()", median(other for _, other in rates), "requests/s")
            yield Figure("  ours / it", median(own / other for own, other in rates), "×", GOAL, "more")
            for url, key in (ours, bare):
                rate(url, key, max(0, DEEP - ROUNDS * requests - WARM_UP))


def rate(base_url: str, key: str, requests: int) -> float:
    """Answers per second, all of them 202. Raises RuntimeError on any other."""
    started_s = time.perf_counter()
    asyncio.run(_send_all(base_url, key, requests))
    return requests / (time.perf_counter() - started_s)


async def _send_all(base_url: str, key: str, requests: int) -> None:
    shares = [len(range(number, requests, CONNECTIONS)) for number in range(CONNECTIONS)]
    await asyncio.gather(*(_send(base_url, key, share) for share in shares))


async def _send(base_url: str, key: str, count: int) -> None:
    """Sends `count` requests over one connection, each when the one before is answered."""
    parts = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps(BODY).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    for _ in range(count):
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        content = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 202"):
            raise RuntimeError(f"not accepted: {answer[:80]!r} {content[:300]!r}")
    writer.close()


@contextmanager
def _bare(folder: Path) -> Iterator[str]:
    """The bare application on a Valkey of its own; yields its URL."""
    with tempfile.TemporaryDirectory(prefix="ns-") as name:
        valkey = ValkeyServer(Path(name))
        valkey.start()
        port = free_port()
        command = [sys.executable, "-m", "uvicorn", "benchmarks.reliability.bare_app:app"]
        command += ["--host", HOST, "--port", str(port), "--no-access-log", "--log-level", "warning"]
        broker = {"BARE_BROKER_URL": valkey.settings.redis_url}
        try:
            with running(command, folder / "bare.log", port, broker):
                yield f"http://{HOST}:{port}"
        finally:
            valkey.kill()
