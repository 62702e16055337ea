"""Simulated upstreams on a thread of this process, or as a process that can be killed and started again."""

import asyncio
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.helpers.upstreams.behaviours import Behaviour
from tests.helpers.upstreams.server import SimulatedUpstream
from tests.helpers.upstreams.settings import Settings
from tests.helpers.waiting import WAIT_MAX_S, wait_for

REPOSITORY = Path(__file__).resolve().parents[3]


@contextmanager
def simulated_upstream(
    settings: Settings | None = None,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[SimulatedUpstream]:
    """An upstream on a thread of its own, which ends with the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="simulated-upstream")
    thread.start()

    async def start() -> SimulatedUpstream:
        upstream = SimulatedUpstream(settings or Settings())
        await upstream.start(port, tls, host)
        return upstream

    try:
        upstream = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_MAX_S)
        try:
            yield upstream
        finally:
            asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(WAIT_MAX_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class UpstreamProcess:
    """An upstream that keeps its port when it is killed and started again. It then has seen nothing."""

    def __init__(self, settings: Settings | None = None, port: int = 0) -> None:
        self.settings, self.port = settings or Settings(), port
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def __enter__(self) -> "UpstreamProcess":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns once it listens. Raises RuntimeError where it ends instead."""
        command = [sys.executable, "-m", "tests.helpers.upstreams", str(self.port)]
        command.append(json.dumps(asdict(self.settings)))
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None, "it is a pipe"
        self._process, said = process, process.stdout.readline()
        if not said:
            raise RuntimeError(f"the upstream ended with {process.wait()}")
        self.port = int(said)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def behave(self, *behaviours: Behaviour) -> None:
        self._control("behave", [asdict(behaviour) for behaviour in behaviours])

    def serve(self, **settings: Any) -> None:
        self._control("serve", settings)

    def seen(self) -> dict[str, Any]:
        """The fields of Seen, with texts for keys."""
        return self._control("seen", None)

    def wait_until(self, what: str, is_true: Callable[[dict[str, Any]], object]) -> None:
        """Waits until what it has seen fulfils this. Raises TimeoutError naming `what`."""
        wait_for(what, lambda: is_true(self.seen()))

    def _control(self, name: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}/control/{name}"
        with urlopen(Request(url, data), timeout=WAIT_MAX_S) as answer:
            return json.load(answer)
