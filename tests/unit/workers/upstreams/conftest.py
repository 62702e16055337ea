"""Models of simulated upstreams behind their servers, as a worker opens them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.endpoints.results import Identity, Origin, Result
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift.process.settings import WorkerSettings
from tests.helpers.upstreams import SimulatedUpstream, simulated_upstream
from tests.helpers.waiting import WAIT_MAX_S
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress
from workers.serving.model_server import Inference, OnFatal
from workers.upstreams.opening import open_upstreams
from workers.upstreams.running.server import UpstreamServer

TENANT = "tenant_1"
CREATED_S = 1_800_000_000


@dataclass
class Heard:
    """Collects what is heard of one request."""

    inference: Inference
    progress: list[Progress] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, progress: Progress) -> None:
        self.progress.append(progress)
        if progress.result is not None or progress.failed is not None:
            self.ended.set()

    @property
    def end(self) -> Progress:
        assert self.ended.wait(WAIT_MAX_S), "no answer came"
        return self.progress[-1]

    @property
    def result(self) -> Result:
        result = self.end.result
        assert result is not None, f"it failed: {self.end.failed}"
        return result

    @property
    def body(self) -> JsonObject:
        inference = self.inference
        origin = Origin(inference.identity, inference.request.model, inference.priority)
        return inference.endpoint.body_of(origin, self.result)

    @property
    def text(self) -> str:
        """The text of its answer's first choice."""
        text = self.result.values["text"]
        assert isinstance(text, str), "it is an answer"
        return text


class Asker:
    """Sends requests to a model's server."""

    def __init__(self, server: UpstreamServer) -> None:
        self.server = server
        self._count = 0

    def chat(self, text: str = "Hi", *, max_tokens: int | None = 64, **more: Any) -> Heard:
        """`max_tokens`: too few, by default, for a row to be streamed."""
        messages = [{"role": "user", "content": text}]
        body = {"model": self.server.model.id, "messages": messages, "max_tokens": max_tokens}
        return self.ask("chat", body, **more)

    def ask(
        self,
        endpoint_name: str,
        body: JsonObject,
        *,
        is_bulk: bool = True,
        priority: PriorityClass = PriorityClass.STANDARD,
        tenant_id: str = TENANT,
        carry_over: CarryOver | None = None,
        breaks: int = 0,
        **fields: Any,
    ) -> Heard:
        """`fields`: more of the body."""
        self._count += 1
        endpoint = endpoints.named(endpoint_name)
        body = {"model": self.server.model.id} | body | fields
        inference = Inference(
            f"row-{self._count}",
            endpoint,
            endpoint.parse(body),
            Identity(f"row-{self._count}", CREATED_S),
            priority,
            listener=lambda progress: heard(progress),
            carry_over=carry_over,
            group="job_1" if is_bulk else None,
            tenant_id=tenant_id,
            body=body,
            is_streamed=not is_bulk,
            breaks=breaks,
        )
        heard = Heard(inference)
        self.server.submit(inference)
        return heard


Opening = Callable[..., Asker]


@pytest.fixture
def upstream() -> Iterator[SimulatedUpstream]:
    with simulated_upstream() as upstream:
        yield upstream


@pytest.fixture
def opened() -> Iterator[Opening]:
    """Opens the only model of upstreams, URLs or files, which is stopped at the end."""
    with ExitStack() as stack:

        def open_model(*entries: str, on_fatal: OnFatal = _fail, **settings: Any) -> Asker:
            servers = open_upstreams(WorkerSettings(upstreams=entries, **settings), on_fatal)
            for server in servers:
                server.start()
                stack.callback(server.stop)
            (server,) = servers
            return Asker(server)

        yield open_model


@pytest.fixture
def asker(upstream: SimulatedUpstream, opened: Opening) -> Asker:
    return opened(upstream.url)


def _fail(error: BaseException) -> None:
    raise AssertionError("the loop ended") from error
