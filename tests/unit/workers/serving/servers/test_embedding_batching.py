"""Configurations of batching: their effect on a worker's requests, and what is wrong with them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightshift import endpoints
from nightshift.endpoints.results import Identity, Result
from nightshift.errors import ConfigurationError
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs.priorities import PriorityClass
from nightshift_engine.encoders import DynamicBatching, EncoderConfig
from tests.unit.workers.serving.conftest import SHIPPED, load
from workers.serving import loading
from workers.serving.inference import Progress
from workers.serving.model_server import Busy, Inference
from workers.serving.servers.encoder_server import EmbeddingServer
from workers.serving.turns import StepTurns

ROUTE = "/v1/embeddings"
DEMO, MINILM = SHIPPED


class HeldEncoder:
    """Each pass waits until the test lets it go."""

    max_length = 8
    vocab_size = 100
    max_num_batched_tokens = 64
    dimensions = 2

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.orders: list[int] = []
        self.last: weakref.ref[Any] = weakref.ref(self)  # what the last pass gave

    def objection(self, input: Any) -> None:
        return None

    def encode(self, inputs: Any) -> Any:
        self.orders += [token_ids[0] for token_ids in inputs]
        self.has_begun.set()
        assert self.may_end.wait(60)
        vectors = np.zeros((len(inputs), 2), dtype=np.float32)
        self.last = weakref.ref(vectors)
        return vectors


@dataclass
class Asked:
    """A request's listener."""

    heard: list[Progress] = field(default_factory=list)
    has_ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, progress: Progress) -> None:
        self.heard.append(progress)
        self.has_ended.set()

    def wait(self) -> Result:
        assert self.has_ended.wait(60)
        result = self.heard[0].result
        assert result is not None
        return result


class Served:
    def __init__(self, *, max_batch_size: int = 1, turns: StepTurns | None = None, **batching: Any) -> None:
        self.encoder = HeldEncoder()
        model = Model(id="m", kind=ModelKind.ENCODER, context_length=8, dimensions=2, revision="r")
        config = EncoderConfig(max_batch_size=max_batch_size, dynamic_batching=DynamicBatching(**batching))
        encoder: Any = self.encoder
        self.server = EmbeddingServer(model, encoder, self._fail, config)
        if turns is not None:
            self.server.share_device(turns)
        self.server.start()

    def ask(self, token: int, priority: PriorityClass, *, job: str | None = None) -> Asked:
        listener, endpoint = Asked(), endpoints.get(ROUTE)
        body = {"model": "m", "input": [token]}
        self.server.submit(
            Inference(
                id=f"r{token}",
                endpoint=endpoint,
                request=endpoint.parse(body),
                identity=Identity("i", 0),
                priority=priority,
                listener=listener,
                group=job,
                tokens=[[token]],
            )
        )
        return listener

    def stop(self) -> None:
        self.encoder.may_end.set()
        self.server.stop()

    def _fail(self, error: BaseException) -> None:
        raise error


@pytest.fixture
def serving() -> Iterator[Any]:
    started: list[Served] = []

    def start(**batching: Any) -> Served:
        started.append(Served(**batching))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def test_requests_go_by_their_class(serving):
    served = serving()
    first = served.ask(1, PriorityClass.STANDARD)
    assert served.encoder.has_begun.wait(60)
    others = [
        served.ask(2, PriorityClass.BACKGROUND, job="j"),
        served.ask(3, PriorityClass.STANDARD),
        served.ask(4, PriorityClass.INTERACTIVE),
    ]

    served.encoder.may_end.set()

    assert [listener.wait().status_code for listener in (first, *others)] == [200] * 4
    assert served.encoder.orders == [1, 4, 3, 2]


def test_a_full_queue_is_busy(serving, monkeypatch):
    monkeypatch.setattr("nightshift_engine.encoders.engine.QUEUE_SIZE_MAX", 1)
    served = serving()
    served.ask(1, PriorityClass.BACKGROUND, job="j")

    with pytest.raises(Busy):
        served.ask(2, PriorityClass.BACKGROUND, job="j")


@pytest.mark.parametrize(("is_urgent", "passes"), [(True, 6), (False, 1)])
def test_passes_are_cut_short_only_while_a_client_waits_for_another_model(serving, is_urgent, passes):
    turns = StepTurns(one_at_a_time=True, urgent_step_s=1e-9)
    served = serving(max_batch_size=8, turns=turns)
    served.encoder.may_end.set()
    served.ask(1, PriorityClass.BACKGROUND, job="j").wait()
    steps = served.server.histograms.batch_size.counts
    before = sum(steps)

    with turns.turn("chat", is_urgent=is_urgent):  # no pass begins before all have come
        rows = [served.ask(token, PriorityClass.BACKGROUND, job="j") for token in range(2, 8)]
    for row in rows:
        row.wait()

    assert sum(steps) - before == passes


# --- files ---


def configured(tmp_path: Path, model: Path, fields: str) -> Any:
    path = tmp_path / "models.yaml"
    path.write_text(f"models:\n  {model.name}: {fields}\n")
    return load(model, model_config_files=(str(path),))


def test_a_file_reaches_the_engine_of_the_model_it_names(tmp_path):
    [server] = configured(tmp_path, MINILM, "\n    max_batch_size: 7")

    assert server._engine.config.max_batch_size == 7


def test_a_wrong_file_is_refused_before_any_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_find", lambda *_: pytest.fail("a model was loaded"))

    with pytest.raises(ConfigurationError, match=r"yaml, line 3: models\.model\.max_batch_sise: there"):
        configured(tmp_path, MINILM, "\n    max_batch_sise: 7")


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        (MINILM, "\n    max_num_batched_tokens: 100", "max_num_batched_tokens: of 100 is less"),
        (DEMO, "{}", "it configures dynamic batching, and"),
    ],
    ids=["a budget below the longest input", "a model that generates"],
)
def test_a_file_that_does_not_suit_its_model_is_refused_with_its_line(tmp_path, model, fields, said):
    with pytest.raises(ConfigurationError, match=rf"models\.yaml, line 2: {said}"):
        configured(tmp_path, model, fields)


def test_a_row_that_has_ended_does_not_keep_the_vectors_of_its_whole_pass(serving: Any) -> None:
    served = serving(max_batch_size=4)
    listeners = [served.ask(token, PriorityClass.STANDARD) for token in (1, 2, 3)]
    served.encoder.may_end.set()
    assert [len(listener.wait().values["embedding"]) for listener in listeners] == [8, 8, 8]
    served.server.stop()  # its thread is past the last pass

    assert served.encoder.last() is None
    assert [listener.heard[0].times.num_prompt_tokens for listener in listeners] == [1, 1, 1]
