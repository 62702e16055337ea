"""A long answer that is cut off goes on from its text: there, at another upstream and in another worker."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nightshift.jobs import JsonObject, Usage
from tests.helpers.upstreams import Settings, SimulatedUpstream, simulated_upstream
from tests.helpers.upstreams.behaviours import Behaviour, breaks, cuts, fails, holds, html, says, unfinished
from tests.helpers.upstreams.texts import answer, encode, rendered
from tests.helpers.waiting import wait_for
from tests.unit.workers.upstreams.conftest import Asker, Heard, Opening
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.upstreams.running.server import BREAKS_MAX

TOKENS = 300  # of each answer
CUT_AT = 6  # events: a chat's first has no token
CLOSING = '"add_generation_prompt":false'  # in the body of a chat that goes on


def long(asker: Asker, text: str = "Tell me", **more: Any) -> Heard:
    return asker.chat(text, max_tokens=TOKENS, ignore_eos=True, **more)


def long_completion(asker: Asker, text: str = "Tell me", **more: Any) -> Heard:
    return asker.ask("completions", {"prompt": text, "max_tokens": TOKENS, "ignore_eos": True}, **more)


def whole(text: str = "Tell me") -> str:
    prompt = encode(rendered({"messages": [{"role": "user", "content": text}]}))
    return answer(prompt, TOKENS, is_endless=True).text


def continuations(upstream: SimulatedUpstream) -> list[int]:
    """The tokens that each request for an answer brought with it, but for those of the probe."""
    return [arrival.num_continued for arrival in upstream.seen.arrivals if "Tell" in str(arrival.prompt)]


def test_a_row_that_is_cut_off_goes_on_from_its_text(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(cuts(CUT_AT, containing="Tell", times=2))
    row = long(asker)
    assert row.text == whole()
    assert row.result.values["finish_reason"] == "length"
    first, second, third = continuations(upstream)
    assert first == 0 < second < third


def test_a_completion_goes_on_from_its_prompt_and_text(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(cuts(CUT_AT, containing="Tell", times=1))
    row = long_completion(asker)
    assert row.text == answer(encode("Tell me"), TOKENS, is_endless=True).text
    assert [arrival.prompt.startswith("Tell me ") for arrival in upstream.seen.arrivals[-2:]] == [False, True]


@pytest.mark.parametrize("ask", [long, long_completion])
def test_each_token_is_charged_once(asker: Asker, upstream: SimulatedUpstream, ask: Any) -> None:
    uncut = ask(asker).result.usage
    upstream.behave(cuts(CUT_AT, containing="Tell", times=1))
    assert ask(asker).result.usage == uncut
    assert uncut.completion_tokens == TOKENS


@pytest.mark.parametrize(
    "fault",
    [
        says('data: {"choices": [{"index": 0, "delta"\n\n', skips=0),
        unfinished(has_done=False),
        unfinished(),
        html(),
    ],
    ids=["no JSON", "no end", "no finish reason", "HTML"],
)
def test_whatever_cuts_it_off(asker: Asker, upstream: SimulatedUpstream, fault: Behaviour) -> None:
    upstream.behave(replace(fault, containing="Tell", times=1))
    assert long(asker).text == whole()


def test_a_stream_without_its_last_line_is_whole(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(Behaviour(has_done=False, containing="Tell"))
    assert long(asker).text == whole()
    assert continuations(upstream) == [0]


@pytest.mark.parametrize(("version", "goes_on"), [("0.32.0", True), ("0.31.0", False)])
def test_it_goes_on_at_another_upstream_only_of_the_same_version(
    upstream: SimulatedUpstream, opened: Opening, version: str, *, goes_on: bool
) -> None:
    with simulated_upstream(Settings(version=version)) as other:
        asker = opened(upstream.url, other.url)
        upstream.behave(cuts(CUT_AT, containing="Tell", times=1), html(containing="Tell"))
        row = long(asker)
        assert row.text == whole()
        assert [count > 0 for count in continuations(other)] == [goes_on]
        assert bool(row.end.so_far and row.end.so_far.num_tokens) is goes_on


@pytest.mark.parametrize(
    "settings",
    [Settings(understands=()), Settings(owned_by="openai", understands=(), is_strict=True)],
    ids=["ignores", "refuses"],
)
def test_a_chat_is_sent_whole_where_the_upstream_does_not_continue(
    opened: Opening, settings: Settings
) -> None:
    with simulated_upstream(settings) as upstream:
        asker = opened(upstream.url)
        upstream.behave(cuts(40, containing="Tell", times=1))
        row = long(asker)
        assert row.text == whole()
        assert row.end.so_far is None
        assert continuations(upstream) == [0, 0]


def test_a_row_is_answered_where_the_upstream_never_streams(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    answer = {"choices": [{"index": 0, "message": {"content": "whole"}, "finish_reason": "stop"}]}
    upstream.behave(Behaviour(body=json.dumps(answer)))
    assert long(asker).text == "whole"


def test_a_row_whose_continuation_is_refused_begins_anew(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(fails(400, "no", containing=CLOSING), cuts(CUT_AT, containing="Tell", times=1))
    row = long(asker)
    assert row.text == whole()
    assert row.end.so_far == ChoiceSoFar()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"return_token_ids": True},
        {"presence_penalty": 1},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"messages": [{"role": "user", "content": "Tell me"}, {"role": "assistant", "content": "It"}]},
        {"max_tokens": 255},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_rows_whose_rest_does_not_follow_from_their_text_are_not_streamed(
    asker: Asker, upstream: SimulatedUpstream, fields: JsonObject
) -> None:
    upstream.behave(cuts(40, containing="Tell", times=1))
    messages = [{"role": "user", "content": "Tell me"}]
    row = asker.ask("chat", {"messages": messages, "max_tokens": 500} | fields)
    assert row.result.succeeded
    assert row.end.so_far is None
    assert len(continuations(upstream)) == 2


@pytest.mark.parametrize("ask", [long, long_completion])
def test_another_worker_goes_on_from_what_this_one_has_heard(
    upstream: SimulatedUpstream, opened: Opening, ask: Any
) -> None:
    upstream.behave(holds(CUT_AT, containing="Tell"))
    first, second = opened(upstream.url), opened(upstream.url)
    upstream.wait_until("both have probed it", lambda seen: not seen.in_flight)
    half = ask(first)
    wait_for("tokens have come", lambda: heard_so_far(first, half).num_tokens >= CUT_AT - 1)
    left = CarryOver([heard_so_far(first, half)], first.server.made_by)
    first.server.cancel(half.inference.id)
    upstream.wait_until("it was given up", lambda seen: seen.cancelled)
    upstream.behave()

    left = CarryOver.from_json(left.to_json(0))
    row = ask(second, carry_over=left)

    assert row.result.usage.completion_tokens == TOKENS
    assert row.text == ask(second).text
    assert row.end.so_far is not None
    assert row.end.so_far.text.startswith(left.choices[0].text)


@pytest.mark.parametrize(
    "left",
    [
        CarryOver([ChoiceSoFar(text=" other", tokens_without_ids=2)], {"engine": "vllm", "version": "0.1"}),
        CarryOver([ChoiceSoFar([4, 5])], {"weights": "sha256:ab"}),
        CarryOver([ChoiceSoFar(text="a", tokens_without_ids=1)] * 2, None),
    ],
    ids=["another version", "an engine of ours", "two choices"],
)
def test_what_another_engine_left_is_made_again(asker: Asker, left: CarryOver) -> None:
    row = long(asker, carry_over=left)
    assert row.text == whole()
    assert row.result.usage.completion_tokens == TOKENS


def test_a_clients_stream_goes_on_and_tells_nothing_twice(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(cuts(CUT_AT, containing="Tell", times=2))
    heard = long(asker, is_bulk=False, stream=True)
    assert heard.text == whole()
    assert "".join(progress.text for progress in heard.progress) == whole()
    assert sum(len(progress.token_ids) for progress in heard.progress) == TOKENS


def test_a_row_that_always_breaks_ends_however_often_it_was_returned(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(cuts(1, containing="poison"))
    row = asker.chat("poison", breaks=BREAKS_MAX - 1)
    assert row.end.failed is not None
    assert not row.end.is_returned
    assert upstream.seen.prompts.count("poison") == 1


def test_a_row_that_breaks_at_the_same_place_ends_however_often_it_was_returned(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(cuts(1, containing=CLOSING), cuts(CUT_AT, containing="Tell", times=1))
    first = long(asker).end
    assert first.failed is not None
    assert first.so_far is not None
    sent = len(continuations(upstream))
    left = CarryOver([first.so_far], asker.server.made_by)
    assert long(asker, carry_over=left, breaks=BREAKS_MAX - 1).end.failed is not None
    assert len(continuations(upstream)) == sent + 1


def test_a_row_that_alone_meets_the_page_of_a_proxy_ends(asker: Asker, upstream: SimulatedUpstream) -> None:
    assert asker.chat("well").result.succeeded
    upstream.behave(html(containing="poison"))
    row = asker.chat("poison", breaks=BREAKS_MAX - 1)
    assert row.end.failed is not None
    assert not row.end.is_returned


def test_a_row_that_comes_further_each_time_is_not_given_up(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(cuts(80, containing="Tell"))
    assert long(asker).text == whole()
    assert len(continuations(upstream)) > BREAKS_MAX


def test_a_failed_try_leaves_what_it_had(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(cuts(CUT_AT, containing="Tell", times=1), breaks(containing="Tell", skips=0))
    row = long(asker)
    assert row.end.failed is not None
    assert row.end.so_far is not None
    assert row.end.so_far.num_tokens == CUT_AT - 1


def heard_so_far(asker: Asker, heard: Heard) -> ChoiceSoFar:
    (progress,) = asker.server.generated(heard.inference.id) or [Progress(so_far=ChoiceSoFar())]
    assert progress.so_far is not None
    return progress.so_far


def test_usage_is_of_the_answer_alone_where_nothing_is_told(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(Behaviour(usage=None, containing="Tell"))
    assert long(asker).result.usage == Usage()
