"""A model over upstreams answers, waits out their faults, and tells rows' faults from theirs."""

import threading
from pathlib import Path

import pytest

from nightshift.errors import InvalidRequest
from nightshift.jobs import Usage
from nightshift.jobs.priorities import PriorityClass
from tests.helpers.upstreams import Settings, SimulatedUpstream, simulated_upstream
from tests.helpers.upstreams.behaviours import (
    Behaviour,
    breaks,
    context_too_long,
    counts,
    cuts,
    enormous,
    fails,
    holds,
    html,
    redirects,
    too_many,
    unavailable,
    wrong_key,
)
from tests.helpers.upstreams.texts import chat_answer, encode, vector
from tests.helpers.waiting import WAIT_MAX_S, wait_for
from tests.unit.workers.upstreams.conftest import CREATED_S, Asker, Opening
from workers.serving.model_server import Busy
from workers.upstreams.running.server import BREAKS_MAX

PROBE = "Hi"


def answered(text: str) -> str:
    return chat_answer([{"role": "user", "content": text}]).text


def test_an_answer_has_the_upstreams_text_and_our_ids(asker: Asker) -> None:
    heard = asker.chat("What is it?")
    assert heard.text == answered("What is it?")
    assert heard.body["id"].startswith("chatcmpl-")
    assert heard.body["created"] == CREATED_S
    assert heard.body["model"] == "simulated"
    assert heard.result.usage.completion_tokens > 0


def test_a_stream_is_heard_as_it_comes_and_ends_with_the_whole_answer(asker: Asker) -> None:
    heard = asker.chat("Tell me", is_bulk=False, stream=True)
    assert heard.text == answered("Tell me")
    parts = [progress.text for progress in heard.progress]
    assert "".join(parts) == heard.text
    assert sum(map(bool, parts)) > 1


def test_vectors_are_the_upstreams(asker: Asker) -> None:
    heard = asker.ask("embeddings", {"input": "a text"})
    (entry,) = heard.body["data"]
    assert entry["embedding"] == pytest.approx(vector(repr(encode("a text")), 8))


def test_a_route_that_no_upstream_answers_is_refused(opened: Opening) -> None:
    with simulated_upstream(Settings(routes=("chat/completions",))) as upstream:
        with pytest.raises(InvalidRequest, match="do not all answer /v1/rerank"):
            opened(upstream.url).ask("rerank", {"query": "q", "documents": ["d"]})


@pytest.mark.parametrize(
    "fault",
    [
        too_many(times=1),
        unavailable(times=1),
        html(times=1),
        html(200, times=1),
        cuts(times=1),
        cuts(20, times=1),
        redirects("http://127.0.0.1:1/", times=1),
        Behaviour(body='{"choices": []}', times=1),
        Behaviour(body="[]", times=1),
    ],
    ids=lambda fault: f"{fault.status} {fault.body and fault.body[:12]} {fault.cuts_at}",
)
def test_a_fault_of_the_upstream_costs_no_row(
    asker: Asker, upstream: SimulatedUpstream, fault: Behaviour
) -> None:
    upstream.behave(fault)
    assert asker.chat("a row").text == answered("a row")


def test_a_refused_row_has_the_upstreams_words_and_code(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(context_too_long(containing="long"))
    refused, well = asker.chat("a long one"), asker.chat("another")
    assert refused.result.status_code == 400
    assert refused.body["error"]["code"] == "context_length_exceeded"
    assert "Your prompt is too long for this model." in refused.body["error"]["message"]
    assert well.text == answered("another")


def test_a_row_on_which_the_engine_fails_is_given_back_to_be_tried_again(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(breaks())
    end = asker.chat().end
    assert end.failed is not None
    assert "device-side assert" in end.failed
    assert not end.is_returned


def test_a_row_that_breaks_each_connection_does_not_run_for_ever(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(cuts(5, containing="poison"))
    poisoned = asker.chat("poison", is_bulk=False)
    assert poisoned.end.failed is not None
    assert upstream.seen.prompts.count("poison") == BREAKS_MAX


def test_rows_are_returned_unharmed_while_the_only_upstream_is_away(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(unavailable())
    rows = [asker.chat(f"row {number}") for number in range(20)]
    upstream.behave(html())
    ends = [row.end for row in rows]
    assert all(end.failed is not None and end.is_returned for end in ends)
    problem = asker.server.problem
    assert problem is not None
    assert problem.startswith("The model's upstream answers 502 since ")
    assert "127.0.0.1" not in problem

    upstream.behave()
    wait_for("a trial has succeeded", lambda: runs(asker))
    assert asker.server.problem is None


def runs(asker: Asker) -> bool:
    try:
        return asker.chat("trial").end.result is not None
    except Busy:
        return False


def test_a_model_that_its_upstream_no_longer_has_is_waited_for(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.serve(models=["another"])
    assert asker.chat().end.is_returned
    assert asker.server.problem is not None
    assert "no longer has the model (404)" in asker.server.problem
    upstream.serve(models=["simulated"])
    wait_for("a trial has succeeded", lambda: runs(asker))
    assert asker.server.problem is None


def test_a_refused_key_stops_the_upstream_and_says_so(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(wrong_key())
    assert asker.chat().end.is_returned
    assert asker.server.problem is not None
    assert "refuses its key (401)" in asker.server.problem
    upstream.behave()
    with pytest.raises(Busy):
        asker.chat()


def test_rows_of_an_upstream_that_fails_go_to_another(upstream: SimulatedUpstream, opened: Opening) -> None:
    with simulated_upstream() as other:
        asker = opened(upstream.url, other.url)
        upstream.behave(unavailable(), html())
        rows = [asker.chat(f"row {number}") for number in range(40)]
        assert [row.text for row in rows] == [answered(f"row {number}") for number in range(40)]
        assert sum(other.seen.answered.values()) >= 40


def test_a_cancelled_request_closes_its_connection(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(holds())
    heard = asker.chat("slow")
    upstream.wait_until("it is there", lambda seen: seen.in_flight)
    asker.server.cancel(heard.inference.id)
    upstream.wait_until("it was given up", lambda seen: seen.cancelled)
    gone = threading.Event()
    asker.server.after_cancelled(gone.set)
    assert gone.wait(WAIT_MAX_S)
    assert not heard.progress


def test_a_request_that_waits_is_cancelled_without_being_sent(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(holds())
    first = [asker.chat(f"row {number}") for number in range(8)]
    upstream.wait_until("as many as at first", lambda seen: seen.in_flight == 8)
    waiting = asker.chat("waits")
    asker.server.cancel(waiting.inference.id)
    upstream.behave()
    assert all(heard.result.succeeded for heard in first)
    assert not any("waits" in prompt for prompt in upstream.seen.prompts)


def test_a_client_goes_before_rows_and_tenants_take_turns(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(holds())
    rows = [asker.chat(f"held {number}") for number in range(8)]
    upstream.wait_until("as many as at first", lambda seen: seen.in_flight == 8)
    rows += [asker.chat(f"first {number}") for number in range(10)]
    rows += [asker.chat("second", tenant_id="tenant_2")]
    rows += [asker.chat("background", priority=PriorityClass.BACKGROUND)]
    rows += [asker.chat("client", priority=PriorityClass.INTERACTIVE, is_bulk=False)]
    upstream.behave()
    assert all(row.result.succeeded for row in rows)
    order = [prompt for prompt in upstream.seen.prompts if "held" not in prompt and prompt != PROBE]
    places = {
        name: next(n for n, prompt in enumerate(order) if name in prompt)
        for name in ("client", "second", "background")
    }
    assert places["client"] < places["second"] <= 3
    assert places["background"] == len(order) - 1


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": -5, "completion_tokens": "many"}, {"prompt_tokens": 2**70}]
)
def test_a_wrong_usage_counts_nothing(asker: Asker, upstream: SimulatedUpstream, usage: object) -> None:
    upstream.behave(counts(usage))  # type: ignore[arg-type]
    assert asker.chat().result.usage == Usage()


def test_an_answer_that_is_too_large_ends_its_row(opened: Opening, upstream: SimulatedUpstream) -> None:
    asker = opened(upstream.url, answer_bytes_max=1 << 20)
    upstream.behave(enormous(1 << 22, containing="large"))
    large = asker.chat("large")
    assert large.result.status_code == 400
    assert large.body["error"]["code"] == "answer_too_large"
    assert asker.chat("small").text == answered("small")


def test_a_stream_that_breaks_after_its_first_part_and_cannot_go_on_fails(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(cuts(3, containing="Tell"))
    heard = asker.chat("Tell me", is_bulk=False, stream=True, logprobs=True)
    assert heard.end.failed is not None
    assert heard.progress[0].text
    assert upstream.seen.prompts.count("Tell me") == 1


@pytest.mark.parametrize("is_bulk", [True, False])
def test_a_response_is_answered_by_an_upstreams_chat(asker: Asker, is_bulk: bool) -> None:
    heard = asker.ask("responses", {"input": "What is it?", "stream": not is_bulk}, is_bulk=is_bulk)
    assert heard.text == answered("What is it?")
    assert heard.body["object"] == "response"
    if not is_bulk:
        assert "".join(progress.text for progress in heard.progress) == heard.text


def test_a_message_with_an_image_is_answered(asker: Asker) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    content = [{"type": "text", "text": "What is it?"}, image]
    heard = asker.ask("chat", {"messages": [{"role": "user", "content": content}]})
    assert heard.text == answered("What is it?")


def test_an_upstream_fetches_addresses_where_its_operator_says_so(
    upstream: SimulatedUpstream, opened: Opening, tmp_path: Path
) -> None:
    file = tmp_path / "upstreams.yaml"
    file.write_text(f"upstreams: [{{url: '{upstream.url}', fetches_urls: true}}]")
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    with pytest.raises(InvalidRequest, match="data URI"):
        opened(upstream.url).ask("chat", body)
    assert opened(str(file)).ask("chat", body).result.succeeded


def test_vectors_that_are_too_few_cost_no_row(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(Behaviour(body='{"data": [{"index": 0, "embedding": [1.0]}]}', times=1))
    heard = asker.ask("embeddings", {"input": ["one", "two"]})
    assert len(heard.body["data"]) == 2


def test_a_model_that_knows_no_max_tokens_is_told_its_limit_by_the_other_name(
    upstream: SimulatedUpstream, opened: Opening
) -> None:
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    )
    upstream.behave(fails(400, message, path="chat/completions", containing='"max_tokens"'))
    heard = opened(upstream.url).chat("What is it?", max_tokens=1)
    assert heard.result.values["finish_reason"] == "length"
