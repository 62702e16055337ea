"""The start of a worker of upstreams: what it waits for, what it refuses, and what it asks."""

import json
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import ModelKind
from nightshift.process.upstreams import Upstream
from tests.helpers.upstreams import Behaviour, Settings, SimulatedUpstream, simulated_upstream
from tests.helpers.upstreams.behaviours import fails, html, too_many, wrong_key
from tests.unit.workers.upstreams.conftest import Opening
from workers.upstreams import opening
from workers.upstreams.control.concurrency import RETRY_AFTER_S_MAX
from workers.upstreams.opening import key_of

LM_STUDIO = '{"error": "Unexpected endpoint or method. (POST /v1/rerank)"}'
FORBIDDEN = {"status": 403, "body": '{"message": "Missing Authentication Token"}'}


def listing(*ids: str, **fields: Any) -> Behaviour:
    """A list of models that says this of each."""
    data = [{"id": id, "max_model_len": 4096} | fields for id in ids]
    return Behaviour(path="models", body=json.dumps({"data": data}))


def file_of(folder: Path, *entries: dict[str, Any]) -> str:
    file = folder / "upstreams.yaml"
    file.write_text(json.dumps({"upstreams": entries}))
    return str(file)


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (listing("simulated", owned_by="nightshift"), "it is a Nightshift itself"),
        (listing(*map(str, range(10_000))), "it has 10000 models: name those to serve"),
        (listing("simulated", max_model_len=None), "does not say the context length of 'simulated'"),
        (listing("simulated", max_model_len="8k"), "does not say the context length of 'simulated'"),
        (wrong_key(), r"refuses its key \(401\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_upstream_that_cannot_be_used_ends_the_worker(
    upstream: SimulatedUpstream, opened: Opening, answers: Behaviour, says: str
) -> None:
    upstream.behave(answers)
    with pytest.raises(ConfigurationError, match=says):
        opened(upstream.url)


@pytest.mark.parametrize("id", ["x" * 300, "a\0b", "a\nb"])
def test_a_model_whose_id_none_may_have_here_is_refused(opened: Opening, tmp_path: Path, id: str) -> None:
    with simulated_upstream(Settings(models=[id])) as upstream:
        with pytest.raises(ConfigurationError, match="is no id that a model has here"):
            opened(upstream.url)
        server = opened(file_of(tmp_path, {"url": upstream.url, "models": {id: {"id": "odd"}}})).server
    assert server.model.id == "odd"


@pytest.mark.parametrize("id", ["org/model:8b@Q4", "modèle 7", "../etc"])
def test_other_ids_are_as_at_the_upstream(opened: Opening, id: str) -> None:
    with simulated_upstream(Settings(models=[id])) as upstream:
        asker = opened(upstream.url)
        assert (asker.server.model.id, asker.chat().result.status_code) == (id, 200)


def test_a_model_that_the_upstream_has_not_is_named_with_those_that_it_has(
    upstream: SimulatedUpstream, opened: Opening, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="it has no model 'other'; it has simulated"):
        opened(file_of(tmp_path, {"url": upstream.url, "models": {"other": None}}))


def test_two_upstreams_with_other_weights_of_one_name_are_both_named(
    upstream: SimulatedUpstream, opened: Opening
) -> None:
    with simulated_upstream(Settings(root="example/other")) as other:
        with pytest.raises(ConfigurationError, match="both have a model 'simulated', and it is not the same"):
            opened(upstream.url, other.url)


def test_models_of_our_own_beside_upstreams_are_refused(upstream: SimulatedUpstream, opened: Opening) -> None:
    with pytest.raises(ConfigurationError, match="upstreams or models of its own"):
        opened(upstream.url, models=("demo",))


@pytest.mark.parametrize("key", ["two\nlines", "“quoted”", "a\0b"])
def test_a_key_that_no_header_may_have_is_refused_and_not_shown(key: str) -> None:
    config = Upstream(url="http://a/v1", api_key_variable="KEY")
    with pytest.raises(ConfigurationError, match="in KEY, which has a character that") as refusal:
        key_of(config, {"KEY": key})
    assert key not in refusal.value.message


@pytest.mark.parametrize("environment", [{}, {"KEY": " "}])
def test_a_key_that_is_named_and_not_set_is_asked_for(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="in KEY, which is not set"):
        key_of(Upstream(url="http://a/v1", api_key_variable="KEY"), environment)
    assert key_of(Upstream(url="http://a/v1"), environment) is None


@pytest.mark.parametrize(
    "answer",
    [
        {"body": LM_STUDIO},
        FORBIDDEN,
        {"status": 400, "body": "Bad Request"},
        {"status": 500, "body": "Internal Server Error"},
        {"body": "<html></html>"},
    ],
)
def test_a_route_that_fails_alone_is_none_of_the_models(
    upstream: SimulatedUpstream, opened: Opening, answer: dict[str, Any]
) -> None:
    upstream.behave(*(Behaviour(path=path, **answer) for path in ("rerank", "embeddings", "score")))
    server = opened(upstream.url).server
    assert server.places[0].model.routes == {"/v1/chat/completions", "/v1/completions"}


@pytest.mark.parametrize(
    ("routes", "kind"),
    [
        (("chat/completions", "embeddings", "rerank"), ModelKind.DECODER),
        (("embeddings", "rerank", "score"), ModelKind.ENCODER),
        (("rerank",), ModelKind.CLASSIFIER),
        (("score",), ModelKind.CLASSIFIER),
    ],
)
def test_a_model_is_of_the_first_kind_that_it_answers_as(
    opened: Opening, routes: tuple[str, ...], kind: ModelKind
) -> None:
    with simulated_upstream(Settings(routes=routes)) as upstream:
        assert opened(upstream.url).server.model.kind is kind


def test_a_reranker_that_makes_vectors_too_is_used_as_its_operator_says(
    opened: Opening, tmp_path: Path
) -> None:
    with simulated_upstream(Settings(routes=("embeddings", "rerank"))) as upstream:
        said = {"url": upstream.url, "models": {"simulated": {"kind": "classifier"}}}
        asker = opened(file_of(tmp_path, said))
        assert asker.ask("rerank", {"query": "q", "documents": ["a", "b"]}).result.status_code == 200
        said["models"]["simulated"]["kind"] = "decoder"
        with pytest.raises(ConfigurationError, match="is no decoder, but encoder and classifier"):
            opened(file_of(tmp_path, said))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds between two questions to an upstream, none of which pass."""
    waits: list[float] = []
    monkeypatch.setattr(opening, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (html(502, path="models", times=2), "answers 502"),
        (html(200, path="models", times=2), "answers what is no JSON"),
        (
            Behaviour(path="models", status=404, body="", times=2),
            "has no /models: its URL should end before that",
        ),
        (fails(400, "No.", path="models", times=2), "has no /models: its URL should end before that"),
        (Behaviour(path="models", body='{"data": []}', times=2), "has no models"),
        (fails(500, "CUDA error", containing="model", times=8), "which answers none of our routes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_upstream_that_is_not_well_yet_is_waited_for(
    upstream: SimulatedUpstream,
    opened: Opening,
    waits: list[float],
    caplog: pytest.LogCaptureFixture,
    answers: Behaviour,
    says: str,
) -> None:
    upstream.behave(answers)
    with caplog.at_level(logging.WARNING):
        assert opened(upstream.url).chat().result.status_code == 200
    assert waits
    assert says in str([record.__dict__.get("reason") for record in caplog.records])


def test_a_limit_of_requests_is_obeyed_and_no_question_that_was_answered_asked_again(
    upstream: SimulatedUpstream, opened: Opening, waits: list[float]
) -> None:
    upstream.behave(*(too_many(20.0, path=path, times=1) for path in ("/completions", "embeddings", "score")))
    opened(upstream.url)
    assert set(waits) == {20.0}
    counts = Counter((arrival.path, arrival.priority) for arrival in upstream.seen.arrivals)
    assert counts["embeddings", None] == 2  # one was refused
    assert counts["rerank", None] == 1


def test_a_start_is_not_held_up_for_as_long_as_an_upstream_likes(
    upstream: SimulatedUpstream, opened: Opening, waits: list[float]
) -> None:
    upstream.behave(too_many(100_000.0, path="models", times=1))
    opened(upstream.url)
    assert waits == [RETRY_AFTER_S_MAX]
