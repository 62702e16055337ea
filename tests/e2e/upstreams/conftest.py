"""A service whose worker has an upstream: a simulated one, and real engines in `make test-all`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID, number_in_words
from tests.e2e.service import Service, forked
from tests.e2e.upstreams import engines
from tests.e2e.upstreams.engines import Engine
from tests.helpers.upstreams import Settings, UpstreamProcess, texts
from tests.integration.servers import free_port


class Server(Protocol):
    """A server of the demo model that keeps its port."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Served:
    """A service with an upstream, and the answer that is right for a number."""

    service: Service
    upstream: Server
    answer_to: Callable[[int], str]


def simulated(port: int, folder: Path) -> UpstreamProcess:
    """A stub with the demo model's name and 16 slots."""
    return UpstreamProcess(Settings(models=(DEMO_MODEL_ID,), slots=engines.SLOTS, step_s=0.005), port)


@pytest.fixture(
    scope="package",
    params=[
        simulated,
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in (engines.vllm, engines.llama_cpp)),
    ],
    ids=lambda kind: kind.__name__,
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, allowed: Mapping[str, str]
) -> Iterator[Served]:
    """Skips where an engine cannot be installed. A test that kills the upstream starts it again."""
    kind: Callable[[int, Path], Engine | UpstreamProcess] = request.param
    upstream = kind(free_port(), tmp_path_factory.mktemp("engine"))
    answer_to = number_in_words if isinstance(upstream, Engine) else _simulated_answer
    try:
        upstream.start()
        with forked(tmp_path_factory.mktemp("service"), UPSTREAMS=upstream.url, **allowed) as service:
            yield Served(service, upstream, answer_to)
    finally:
        upstream.kill()


@pytest.fixture
def service(served: Served) -> Service:
    """Takes the place of the service with an engine of its own."""
    return served.service


@pytest.fixture
def answer_to(served: Served) -> Callable[[int], str]:
    return served.answer_to


def _simulated_answer(number: int) -> str:
    return texts.chat_answer([{"role": "user", "content": str(number)}]).text
