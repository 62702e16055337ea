"""The simulated upstream does as tests of upstreams rely on."""

import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.helpers.certificates import certified
from tests.helpers.upstreams import (
    Settings,
    SimulatedUpstream,
    UpstreamProcess,
    behaviours,
    simulated_upstream,
)
from tests.helpers.upstreams.texts import GENERATED, chat_answer, text_answer

MODEL = "simulated"


@pytest.fixture
def upstream() -> Iterator[SimulatedUpstream]:
    with simulated_upstream() as upstream:
        yield upstream


@pytest.fixture
def client(upstream: SimulatedUpstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream.url, api_key="key", max_retries=0) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def post(
    upstream: SimulatedUpstream, text: str = "row", *, timeout: httpx.Timeout | None = None, **more: Any
) -> httpx.Response:
    body = {"model": MODEL, "messages": user(text), **more}
    return httpx.post(f"{upstream.url}/chat/completions", json=body, timeout=timeout)


# -- answers -----------------------------------------------------------------------------------------------


def test_an_answer_follows_from_its_prompt(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=user("one"), max_tokens=2)
    [choice] = chat.choices
    assert choice.message.content == chat_answer(user("one"), 2).text
    assert choice.finish_reason == "length"
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 2
    completion = client.completions.create(model=MODEL, prompt=["two", "three"], max_tokens=99)
    assert [choice.text for choice in completion.choices] == [
        text_answer("two").text,
        text_answer("three").text,
    ]


def test_a_stream_has_the_same_text_and_counts(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=user("one"), stream=True, stream_options={"include_usage": True}
        )
    )
    expected = chat_answer(user("one"))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected.text
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids)


def test_an_answer_is_continued_as_text_and_as_token_ids(upstream: SimulatedUpstream) -> None:
    whole = post(upstream, max_tokens=9, ignore_eos=True, return_token_ids=True).json()
    text, ids = whole["choices"][0]["message"]["content"], whole["choices"][0]["token_ids"]
    assert len(ids) == 9
    begun = [*user("row"), {"role": "assistant", "content": text[: 4 * len(" ·1f3a")]}]
    more = {"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True}
    rest = post(upstream, messages=begun, max_tokens=5, **more).json()
    assert rest["choices"][0]["message"]["content"] == text[4 * len(" ·1f3a") :]
    prompt = whole["prompt_token_ids"] + ids[:4]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 5, "ignore_eos": True, "return_token_ids": True}
    rest = httpx.post(f"{upstream.url}/completions", json=body).json()
    assert rest["choices"][0]["token_ids"] == ids[4:]
    assert all(GENERATED <= id < 2 * GENERATED for id in whole["prompt_token_ids"])
    assert [arrival.num_continued for arrival in upstream.seen.arrivals] == [0, 4, 4]


def test_encoders_answer_as_vllm_does(upstream: SimulatedUpstream, client: openai.OpenAI) -> None:
    lists, packed = (
        httpx.post(f"{upstream.url}/embeddings", json={"model": MODEL, "input": "a", **more}).json()
        for more in ({}, {"encoding_format": "base64"})
    )
    assert len(lists["data"][0]["embedding"]) == 8
    assert client.embeddings.create(model=MODEL, input="a").data[0].embedding == lists["data"][0]["embedding"]
    assert isinstance(packed["data"][0]["embedding"], str)
    body = {"model": MODEL, "query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    ranked = httpx.post(f"{upstream.url}/rerank", json=body).json()["results"]
    assert len(ranked) == 2
    assert ranked[0]["relevance_score"] >= ranked[1]["relevance_score"]
    scored = httpx.post(f"{upstream.url}/score", json={"model": MODEL, "text_1": "q", "text_2": ["a", "b"]})
    assert [pair["index"] for pair in scored.json()["data"]] == [0, 1]


def test_it_says_which_server_and_models_it_is(upstream: SimulatedUpstream, client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert (model.id, model.owned_by) == (MODEL, "vllm")
    assert httpx.get(upstream.url.replace("/v1", "/version")).json() == {"version": "0.32.0"}
    upstream.serve(models=[], version=None, key="secret")
    assert httpx.get(upstream.url.replace("/v1", "/version")).status_code == 404
    assert post(upstream).status_code == 401
    upstream.serve(key=None)
    assert post(upstream).json()["error"]["type"] == "NotFoundError"


def test_a_server_that_is_strict_refuses_what_it_does_not_understand() -> None:
    with simulated_upstream(Settings(understands=(), is_strict=True)) as upstream:
        assert post(upstream, priority=1).json()["error"]["param"] == "priority"
        assert post(upstream).status_code == 200


def test_llama_cpp_differs_from_vllm(upstream: SimulatedUpstream) -> None:
    upstream.serve(owned_by="llamacpp", routes=["chat/completions", "completions"])
    whole = post(upstream, model="any", n=2, max_tokens=4, ignore_eos=True).json()
    assert whole["usage"]["completion_tokens"] == 4
    text = whole["choices"][0]["message"]["content"]
    begun = [*user("row"), {"role": "assistant", "content": text[:12]}]
    rest = post(upstream, messages=begun, max_tokens=2, ignore_eos=True).json()
    assert rest["choices"][0]["message"]["content"] == text
    assert httpx.post(f"{upstream.url}/embeddings", json={}).status_code == 501
    body = {"model": MODEL, "prompt": "a", "stream": True, "max_tokens": 1}
    last, *_ = httpx.post(f"{upstream.url}/completions", json=body).text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == 1


def test_a_prompt_longer_than_the_context_is_refused(upstream: SimulatedUpstream) -> None:
    upstream.serve(max_model_len=8)
    answer = post(upstream, "far too long a prompt for eight tokens")
    assert answer.status_code == 400
    assert "maximum context length is 8 tokens" in answer.json()["error"]["message"]


# -- slots -------------------------------------------------------------------------------------------------


def test_slots_go_to_the_most_urgent_and_the_queue_has_an_end() -> None:
    settings = Settings(slots=1, waiting_max=2, step_s=0.02, own_tokens=3)
    with simulated_upstream(settings) as upstream, ThreadPoolExecutor(4) as pool:
        ended: list[str] = []

        def ask(text: str, priority: int) -> int:
            status = post(upstream, text, priority=priority).status_code
            ended.append(text)
            return status

        asked_for = []
        for text, priority in (("running", 0), ("later", 5), ("urgent", -5)):
            asked_for.append(pool.submit(ask, text, priority))
            upstream.wait_until("it is there", lambda seen, text=text: text in seen.prompts)
        assert post(upstream, "one too many").status_code == 429
        assert [future.result() for future in asked_for] == [200, 200, 200]
        assert ended == ["running", "urgent", "later"]
        assert upstream.seen.in_flight_max == 4


def test_it_keeps_to_its_limits_and_tells_them(upstream: SimulatedUpstream) -> None:
    upstream.serve(requests_per_minute=2)
    assert post(upstream).headers["x-ratelimit-remaining-requests"] == "1"
    post(upstream)
    refused = post(upstream)
    assert refused.status_code == 429
    assert 25 < float(refused.headers["retry-after"]) <= 30


# -- behaviours --------------------------------------------------------------------------------------------


def test_a_storm_ends_after_so_many_requests(upstream: SimulatedUpstream) -> None:
    upstream.behave(behaviours.too_many(1.5, skips=1, times=2))
    answers = [post(upstream) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 429, 429, 200]
    assert answers[1].headers["retry-after"] == "1.5"
    assert upstream.seen.statuses == {200: 2, 429: 2}


def test_only_the_rows_that_are_meant_break(upstream: SimulatedUpstream) -> None:
    upstream.behave(behaviours.breaks(containing="bad row"))
    assert [post(upstream, text).status_code for text in ("a good row", "a bad row")] == [200, 500]
    assert dict(upstream.seen.answered) == {"a good row": 1}


@pytest.mark.parametrize(
    "behaviour",
    [behaviours.cuts(0), behaviours.cuts(20)],
    ids=["before the first byte", "in the middle"],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_is_cut(
    upstream: SimulatedUpstream, behaviour: behaviours.Behaviour, is_streamed: bool
) -> None:
    upstream.behave(behaviour)
    with pytest.raises(httpx.RemoteProtocolError):
        post(upstream, stream=is_streamed, max_tokens=99, ignore_eos=True)
    assert upstream.seen.cancelled == 0
    assert not upstream.seen.answered


def test_a_stream_has_what_a_behaviour_says_in_it(upstream: SimulatedUpstream) -> None:
    upstream.behave(behaviours.says(behaviours.NO_JSON, 1, has_done=False))
    events = post(upstream, stream=True, max_tokens=3, ignore_eos=True).text.split("\n\n")
    assert events[1] == behaviours.NO_JSON.strip()
    assert "[DONE]" not in events[-2]
    upstream.behave(behaviours.unfinished())
    *_, last, done, _ = post(upstream, stream=True, max_tokens=3, ignore_eos=True).text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] is None
    assert done == "data: [DONE]"


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": -1, "completion_tokens": "9"}])
def test_counts_are_wrong_or_missing(upstream: SimulatedUpstream, usage: dict[str, Any] | None) -> None:
    upstream.behave(behaviours.counts(usage))
    assert post(upstream).json().get("usage") == usage
    events = post(upstream, stream=True, stream_options={"include_usage": True}).text
    assert ('"usage":' in events) == (usage is not None)


def test_other_answers_than_json(upstream: SimulatedUpstream) -> None:
    upstream.behave(behaviours.html(200))
    assert post(upstream).headers["content-type"] == "text/html"
    upstream.behave(behaviours.redirects("http://127.0.0.1:9/v1"))
    assert post(upstream).headers["location"] == "http://127.0.0.1:9/v1"
    upstream.behave(behaviours.enormous(1 << 20))
    assert len(post(upstream).content) > 1 << 20
    upstream.behave(behaviours.filters())
    assert post(upstream).json()["choices"][0]["finish_reason"] == "content_filter"


def test_requests_are_held_until_the_behaviours_change(upstream: SimulatedUpstream) -> None:
    upstream.behave(behaviours.holds())
    with ThreadPoolExecutor(3) as pool:
        held = [pool.submit(post, upstream, stream=is_streamed) for is_streamed in (False, True, True)]
        upstream.wait_until("they are there", lambda seen: seen.in_flight == 3)
        upstream.behave()
        assert [future.result().status_code for future in held] == [200] * 3
    assert upstream.seen.in_flight_max == 3


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_its_client_gives_up_is_counted(
    upstream: SimulatedUpstream, is_streamed: bool
) -> None:
    upstream.behave(behaviours.holds())
    with pytest.raises(httpx.ReadTimeout):
        post(upstream, stream=is_streamed, timeout=httpx.Timeout(30, read=0.05))
    upstream.wait_until("it was cancelled", lambda seen: seen.cancelled == 1 and seen.in_flight == 0)


def test_a_connection_without_a_request_is_closed(upstream: SimulatedUpstream) -> None:
    with httpx.Client(base_url=upstream.url) as client:
        assert client.get("/models").status_code == 200
        [connection] = client._transport._pool.connections  # type: ignore[attr-defined]
        upstream.close_idle()
        client.get("/models")
        assert client._transport._pool.connections != [connection]  # type: ignore[attr-defined]


def test_a_certificate_that_nobody_vouches_for_does_not_hold(tmp_path: Path) -> None:
    with simulated_upstream(tls=certified(tmp_path, "localhost")) as upstream:
        with pytest.raises(httpx.ConnectError, match="self-signed"):
            post(upstream)
        url = upstream.url.replace("127.0.0.1", "localhost")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        assert httpx.get(f"{url}/models", verify=trusted).status_code == 200


# -- a process ---------------------------------------------------------------------------------------------


def test_a_process_is_killed_and_started_again_at_its_port() -> None:
    with UpstreamProcess() as process:
        process.behave(behaviours.too_many(times=1))
        url = f"{process.url}/chat/completions"
        body = {"model": MODEL, "messages": user("row")}
        assert [httpx.post(url, json=body).status_code for _ in range(2)] == [429, 200]
        seen = process.seen()
        assert seen["statuses"] == {"429": 1, "200": 1}
        assert seen["arrivals"][0]["prompt"] == "row"
        process.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.post(url, json=body)
        process.start()
        assert httpx.post(url, json=body).status_code == 200
