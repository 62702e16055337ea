"""What pages that come and go leave behind in the API: its memory, over HTTP.

The API is a process of its own. A connection is opened, says that it follows what happens, is told once, and
is hung up; several at a time, as laptops wake.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

AT_ONCE: Final = 8
STARTS_WITHIN_S: Final = 60.0
TELLS: Final = b"event:"


def reconnect(data_dir: Path, redis_url: str, key: str, count: int, port: int) -> dict[str, Any]:
    """MiB of resident memory after a tenth of the reconnects, and after all."""
    environment = os.environ | {
        "NIGHTSHIFT_DATA_DIR": str(data_dir),
        "NIGHTSHIFT_REDIS_URL": redis_url,
        "NIGHTSHIFT_LOG_LEVEL": "warning",
    }
    serve = (sys.executable, "-m", "uvicorn", "api.app:create_app", "--factory", "--port", str(port))
    process = subprocess.Popen((*serve, "--log-level", "warning"), env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url)
        cookie = _sign_in(url, key)
        began_s, after = time.monotonic(), []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for share in (count // 10, count - count // 10):
                for told in pool.map(lambda _: _follow_once(url, cookie), range(share)):
                    assert told, "the stream told nothing"
                after.append(_resident_mib(process.pid))
        took_s = time.monotonic() - began_s
        return {
            "reconnects over HTTP": count,
            "a second": round(count / took_s),
            "mib_after_a_tenth": after[0],
            "mib_after_all": after[-1],
            "open_files_left": len(list(Path(f"/proc/{process.pid}/fd").iterdir())),
        }
    finally:
        process.terminate()
        process.wait()


def _follow_once(url: str, cookie: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("GET", "/ui/updates", headers={"cookie": cookie, "accept": "text/event-stream"})
        answer = connection.getresponse()
        return answer.status == 200 and TELLS in answer.read1(4096)
    finally:
        connection.close()


def _sign_in(url: str, key: str) -> str:
    with httpx.Client(base_url=url, trust_env=False) as client:
        answered = client.post("/ui/sign_in", data={"key": key}, headers={"accept": "text/html"})
        assert answered.status_code == 303, answered.text
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def _wait_for(url: str) -> None:
    ends_s = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            httpx.get(f"{url}/healthz", trust_env=False)
            return
        except httpx.TransportError:
            assert time.monotonic() < ends_s, "the API does not start"
            time.sleep(0.1)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * 4096 / 2**20, 1)
