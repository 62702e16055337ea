"""An upstream that misbehaves: rows are answered all the same; where one cannot be, its error says why."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import openai
import pytest

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import answer_of, ended_batch, output_lines, submit_batch
from tests.e2e.upstreams.conftest import Served, simulated
from tests.helpers.upstreams import Behaviour, UpstreamProcess, behaviours, texts

pytestmark = pytest.mark.parametrize("served", [simulated], indirect=True, ids=["simulated"])

ROWS = 24
TRIES = 3  # of a row that breaks its engine off
WHOLE_TRY = 1  # of a row that was refused as a stream
BREAKS = 3  # of a request, which then count as one try of its row
LONG = [{"role": "user", "content": "a long answer"}]
WHOLE = texts.answer(texts.encode(texts.rendered({"messages": LONG})), 20, is_endless=True).text


@pytest.fixture
def upstream(served: Served, client: openai.OpenAI) -> Iterator[UpstreamProcess]:
    """An upstream that has just answered well: its breaker is closed."""
    assert isinstance(served.upstream, UpstreamProcess)
    assert all(_stream(client))
    yield served.upstream
    served.upstream.behave()


def test_rows_are_answered_whatever_their_first_try_met(
    upstream: UpstreamProcess, served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    met = [
        *(behaviours.too_many(0.1), behaviours.too_many(), behaviours.unavailable()),
        *(behaviours.html(), behaviours.html(200), behaviours.redirects("http://127.0.0.1:9/v1")),
        *(behaviours.cuts(0), behaviours.cuts(50), behaviours.breaks(), Behaviour(body="{}")),
        *(behaviours.counts(None), behaviours.counts({"prompt_tokens": -4, "completion_tokens": "x"})),
    ]
    upstream.behave(*(_of_row(number, behaviour, 1) for number, behaviour in zip(numbers, met, strict=False)))
    batch = ended_batch(served.service, submit_batch(client, numbers[:ROWS]))
    answers = {line["custom_id"]: answer_of(line) for line in output_lines(client, batch.id)}
    assert answers == {f"number-{number}": served.answer_to(number) for number in numbers[:ROWS]}


def test_the_error_of_a_row_has_the_upstreams_message(
    upstream: UpstreamProcess, served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    before = _arrivals(upstream)
    expected = [
        (behaviours.context_too_long(), "Your prompt is too long for this model.", 1 + WHOLE_TRY),
        (behaviours.breaks(), "device-side assert triggered", TRIES * BREAKS),
        (behaviours.cuts(1), "The upstream", TRIES * BREAKS),
    ]
    upstream.behave(*(_of_row(number, one[0]) for number, one in zip(numbers, expected, strict=False)))
    batch = ended_batch(served.service, submit_batch(client, numbers[:ROWS]))
    assert len(output_lines(client, batch.id)) == ROWS - len(expected)
    assert batch.error_file_id is not None
    errors = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
    said = {error["custom_id"]: json.dumps(error) for error in errors}
    for number, (_, message, tries) in zip(numbers, expected, strict=False):
        assert message in said[f"number-{number}"]
        assert (_arrivals(upstream) - before)[str(number)] == tries


def test_texts_that_few_encodings_hold_are_answers(
    upstream: UpstreamProcess, served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    choice = (
        r'{"index": 0, "message": {"content": "half \ud83d, \u0000 and \u001b"}, "finish_reason": "stop"}'
    )
    upstream.behave(Behaviour(body=f'{{"id": "x", "choices": [{choice}]}}', containing=f'"{numbers[0]}"'))
    batch = ended_batch(served.service, submit_batch(client, numbers[:ROWS]))
    answers = {line["custom_id"]: answer_of(line) for line in output_lines(client, batch.id)}
    assert batch.error_file_id is None, client.files.content(batch.error_file_id).text
    assert answers[f"number-{numbers[0]}"] == "half \ud83d, \0 and \x1b"
    assert len(answers) == ROWS
    said = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=[{"role": "user", "content": str(numbers[0])}]
    )
    assert said.choices[0].message.content == "half \ud83d, \0 and \x1b"


def test_rows_of_a_worker_that_is_told_to_stop_are_run_by_the_next(
    upstream: UpstreamProcess, served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    upstream.behave(behaviours.holds(containing="messages"))
    batch_id = submit_batch(client, numbers[:500])
    upstream.wait_until("it has rows", lambda seen: seen["in_flight"])
    os.kill(served.service.worker_pid(), signal.SIGTERM)
    upstream.wait_until("their connections are closed", lambda seen: not seen["in_flight"])
    upstream.behave()
    batch = ended_batch(served.service, batch_id)
    answers = [answer_of(line) for line in output_lines(client, batch.id)]
    assert answers == [served.answer_to(number) for number in numbers[:500]]


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(behaviours.cuts(3), id="cut"),
        pytest.param(behaviours.says(behaviours.NO_JSON), id="no JSON"),
        pytest.param(behaviours.says(behaviours.ERROR_EVENT), id="an error"),
        pytest.param(behaviours.unfinished(has_done=False), id="no end"),
        pytest.param(behaviours.unfinished(), id="no finish reason"),
    ],
)
def test_a_stream_that_breaks_after_its_first_token_and_cannot_go_on_ends_in_an_error(
    upstream: UpstreamProcess, client: openai.OpenAI, behaviour: Behaviour
) -> None:
    upstream.behave(behaviour)
    text = ""
    with pytest.raises(openai.APIError):  # noqa: PT012 some of it comes before the error
        for chunk in _stream(client, logprobs=True):
            text += _text(chunk)
    assert text
    assert WHOLE.startswith(text)


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(behaviours.cuts(1, times=2), id="cut before the first token"),
        pytest.param(behaviours.cuts(8), id="cut again and again"),
        pytest.param(behaviours.unfinished(times=1), id="no finish reason at first"),
        pytest.param(behaviours.says(behaviours.NO_JSON, 1, times=2), id="no JSON before the first token"),
        pytest.param(behaviours.says(behaviours.KEEP_ALIVE, 0), id="a comment"),
        pytest.param(Behaviour(has_done=False), id="no end after the finish reason"),
    ],
)
def test_a_stream_comes_all_the_same(
    upstream: UpstreamProcess, client: openai.OpenAI, behaviour: Behaviour
) -> None:
    upstream.behave(behaviour)
    assert "".join(map(_text, _stream(client))) == WHOLE


def test_a_client_that_leaves_closes_the_upstreams_connection(
    upstream: UpstreamProcess, client: openai.OpenAI
) -> None:
    before = upstream.seen()["cancelled"]
    upstream.behave(behaviours.holds(3))
    with _stream(client) as chunks:
        next(iter(chunks))
    upstream.wait_until("it was cancelled", lambda seen: seen["cancelled"] == before + 1)


def _stream(
    client: openai.OpenAI, *, logprobs: bool = False
) -> openai.Stream[openai.types.chat.ChatCompletionChunk]:
    return client.chat.completions.create(
        model=DEMO_MODEL_ID,
        messages=LONG,
        extra_body={"ignore_eos": True},
        max_tokens=20,
        logprobs=logprobs,
        stream=True,
    )


def _of_row(number: int, behaviour: Behaviour, times: int | None = None) -> Behaviour:
    return replace(behaviour, containing=f'"{number}"', times=times)


def _text(chunk: openai.types.chat.ChatCompletionChunk) -> str:
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


def _arrivals(upstream: UpstreamProcess) -> Counter[str]:
    return Counter(arrival["prompt"] for arrival in upstream.seen()["arrivals"])
