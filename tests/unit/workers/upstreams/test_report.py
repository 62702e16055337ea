"""Facts about upstreams that `nightshift upstreams probe` tells."""

import asyncio
from typing import Any

import pytest

from nightshift.process.upstreams import Upstream
from tests.helpers.upstreams import Settings, SimulatedUpstream, simulated_upstream
from tests.helpers.upstreams.behaviours import Behaviour, html, too_many, wrong_key
from workers.upstreams.report import report


def told(*urls: str, **fields: Any) -> list[dict[str, Any]]:
    return asyncio.run(report([Upstream(url=url, **fields) for url in urls]))


def test_a_model_is_told_with_what_it_answers(upstream: SimulatedUpstream) -> None:
    ((model,),) = [entry["models"] for entry in told(upstream.url)]
    assert {name for name, value in model.items() if value is True} == {
        *("chat", "completions", "embeddings", "rerank", "score"),
        *("streaming", "logprobs", "token_ids", "priority", "continues"),
    }
    assert (model["engine"], model["version"], model["context_length"]) == ("vllm", "0.32.0", 4096)


def test_what_a_model_does_not_answer_is_told_too() -> None:
    settings = Settings(routes=("embeddings",), owned_by="other", version=None)
    with simulated_upstream(settings) as upstream:
        ((model,),) = [entry["models"] for entry in told(upstream.url)]
    assert [name for name, value in model.items() if value is True] == ["embeddings"]


def test_an_engine_that_refuses_priorities_is_sent_none() -> None:
    with simulated_upstream(Settings(understands=(), is_strict=True)) as upstream:
        ((model,),) = [entry["models"] for entry in told(upstream.url)]
    assert (model["chat"], model["priority"], model["token_ids"]) == (True, False, False)


@pytest.mark.parametrize("is_low_first", [True, False])
def test_sglang_is_sent_priorities_only_where_lower_ones_go_first(*, is_low_first: bool) -> None:
    info = {
        "version": "0.5.4",
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": is_low_first,
    }
    settings = Settings(owned_by="sglang", version=None, server_info=info)
    with simulated_upstream(settings) as upstream:
        ((model,),) = [entry["models"] for entry in told(upstream.url)]
    assert (model["version"], model["priority"]) == ("0.5.4", is_low_first)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (wrong_key(), "refuses its key (401)"),
        (html(), "answers 502"),
        (html(200), "answers what is no JSON"),
        (too_many(), "answers 429"),
        (Behaviour(body='{"data": []}', path="models"), "has no models"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_upstream_that_cannot_be_used_says_why_beside_the_others(
    upstream: SimulatedUpstream, fault: Behaviour, says: str
) -> None:
    upstream.behave(fault)
    with simulated_upstream() as other:
        failed, well = told(upstream.url, other.url)
    assert says in failed["problem"]
    assert well["problem"] is None
    assert len(well["models"]) == 1


def test_nothing_listens_there() -> None:
    (failed,) = told("http://127.0.0.1:1/v1")
    assert failed["problem"] == "The upstream '127.0.0.1:1' cannot be reached."
