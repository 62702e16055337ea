"""Deltas in, text out: always a beginning of the answer, in the end the whole of it."""

import random

import pytest

from api.openai.transcript import MalformedDelta, Piece, Transcript
from api.responses.errors import StreamInterrupted
from nightshift.endpoints.texts.logprobs import num_tokens, since
from nightshift.jobs import JsonObject

ANSWER = "forty-eight thousand two hundred thirteen"


def delta(start: int, end: int) -> dict[str, object]:
    return {"index": 0, "text": ANSWER[start:end], "offset": start}


def take(transcript: Transcript, delta: dict[str, object]) -> str:
    return transcript.take(delta).text


def rest(transcript: Transcript, recorded: str) -> str:
    return transcript.rest(Piece(recorded)).text


SAID, ARGUMENTS = "Let me see.", ['{"city": "Oslo"}', '{"city": "Rome"}']


def call_delta(index: int, start: int, end: int, **fields: object) -> dict[str, object]:
    after = len(ARGUMENTS[index - 1] if index else SAID)
    data = {"index": 0, "call": index, "name": "f", "after": after, "offset": start}
    return data | {"arguments": ARGUMENTS[index][start:end]} | fields


@pytest.mark.parametrize("seed", range(30))
def test_calls_come_whole_and_in_order_whatever_is_lost_or_repeated(seed):
    rng = random.Random(seed)
    deltas: list[tuple[bool, dict[str, object]]] = [
        (False, {"text": SAID[at : at + 3], "offset": at}) for at in range(0, len(SAID), 3)
    ]
    deltas += [(True, call_delta(n, at, at + 4)) for n in (0, 1) for at in range(0, len(ARGUMENTS[n]), 4)]
    again = rng.randint(0, len(deltas))  # another worker begins anew
    seen = [*deltas[:again], *deltas] if rng.random() < 0.5 else deltas
    transcript, content, calls = Transcript(), "", list[str]()
    for is_call, delta in seen:
        if rng.random() < 0.1:
            continue
        if not is_call:
            new = transcript.take(delta).text
            assert not new or not calls
            content += new
        elif (part := transcript.take_call(delta)) is not None:
            assert part.is_first == (part.index == len(calls))
            calls += [""] if part.is_first else []
            assert part.index == len(calls) - 1
            calls[-1] += part.arguments
            assert content == SAID
    content += rest(transcript, SAID)
    recorded = [{"id": "c", "function": {"name": "f", "arguments": text}} for text in ARGUMENTS]
    if len(calls) == 2 and calls[0] != ARGUMENTS[0]:
        raise AssertionError("the second began before the first was over")
    for part in transcript.rest_of_calls(recorded):
        calls += [""] if part.is_first else []
        calls[part.index] += part.arguments

    assert (content, calls) == (SAID, ARGUMENTS)


@pytest.mark.parametrize(
    "fields",
    [{"call": "0"}, {"call": -1}, {"after": None}, {"offset": 1.5}, {"name": None}, {"arguments": 3}],
    ids=str,
)
def test_a_call_that_no_worker_wrote_is_malformed(fields):
    with pytest.raises(MalformedDelta):
        Transcript().take_call(call_delta(0, 0, 4, **fields))


@pytest.mark.parametrize("recorded", [[], ["g", ARGUMENTS[0]], ["f", "{}"]], ids=str)
def test_a_call_that_is_recorded_otherwise_interrupts_the_stream(recorded):
    transcript = Transcript()
    assert transcript.take_call(call_delta(0, 0, 4, after=0)) is not None
    functions = [{"name": recorded[0], "arguments": recorded[1]}] if recorded else []

    with pytest.raises(StreamInterrupted):
        transcript.rest_of_calls([{"id": "c", "function": function} for function in functions])


@pytest.mark.parametrize("seed", range(30))
def test_a_thought_comes_whole_before_the_answer_whatever_is_lost_or_repeated(seed):
    rng = random.Random(seed)
    thought = "I add three and four."
    deltas: list[dict[str, object]] = [
        {"thought": thought[at : at + 4], "offset": at} for at in range(0, len(thought), 4)
    ]
    after = {"thought_chars": len(thought)}
    deltas += [{"text": SAID[at : at + 3], "offset": at} | after for at in range(0, len(SAID), 3)]
    deltas += [call_delta(0, at, at + 4) | after for at in range(0, len(ARGUMENTS[0]), 4)]
    transcript, thinking, content, arguments = Transcript(), "", "", ""
    for delta in deltas if rng.random() < 0.5 else [*deltas[: rng.randint(0, len(deltas))], *deltas]:
        if rng.random() < 0.1:
            continue
        if "thought" in delta:
            new = transcript.take_thought(delta)
            assert not new or not content
            thinking += new
        elif "call" in delta:
            part = transcript.take_call(delta)
            arguments += part.arguments if part is not None else ""
        else:
            content += transcript.take(delta).text
        assert not (content or arguments) or thinking == thought
        assert not arguments or content == SAID
    thinking += transcript.rest_of_thought(thought)
    content += rest(transcript, SAID)
    call = {"id": "c", "function": {"name": "f", "arguments": ARGUMENTS[0]}}
    arguments += "".join(part.arguments for part in transcript.rest_of_calls([call]))

    assert (thinking, content, arguments) == (thought, SAID, ARGUMENTS[0])


@pytest.mark.parametrize(
    "delta", [{"thought": 3, "offset": 0}, {"thought": "a"}, {"thought": "a", "offset": -1}]
)
def test_a_thought_that_no_worker_wrote_is_malformed(delta):
    with pytest.raises(MalformedDelta):
        Transcript().take_thought(delta)


def test_a_thought_that_is_recorded_otherwise_or_too_late_interrupts_the_stream():
    begun, answered = Transcript(), Transcript()
    begun.take_thought({"thought": "I add", "offset": 0})
    answered.take({"text": "7"})

    for transcript in (begun, answered):
        with pytest.raises(StreamInterrupted):
            transcript.rest_of_thought("We add.")


def test_deltas_in_order_pass_as_they_are():
    transcript = Transcript()

    assert [take(transcript, delta(n, n + 5)) for n in (0, 5, 10)] == [
        ANSWER[:5],
        ANSWER[5:10],
        ANSWER[10:15],
    ]
    assert rest(transcript, ANSWER) == ANSWER[15:]


def test_a_delta_without_a_place_follows_the_one_before_it():
    transcript = Transcript()

    assert take(transcript, {"text": "a"}) + take(transcript, {"text": "b"}) == "ab"


def test_a_delta_that_contradicts_what_was_sent_is_not_passed_on():
    transcript = Transcript()
    take(transcript, delta(0, 5))

    assert take(transcript, {"text": "fifty", "offset": 0}) == ""
    assert take(transcript, {"text": "fifty-one", "offset": 0}) == ""
    assert transcript.sent == ANSWER[:5]


def test_another_answer_than_the_one_sent_is_an_error():
    transcript = Transcript()
    take(transcript, delta(0, 5))

    with pytest.raises(StreamInterrupted):
        rest(transcript, "fifty-one")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_or_repeated_the_text_adds_up(seed):
    print(f"seed {seed}")
    draw = random.Random(seed)
    transcript, received = Transcript(), ""
    for _ in range(60):
        start = draw.randrange(len(ANSWER))
        received += take(transcript, delta(start, start + draw.randrange(8)))
        assert ANSWER.startswith(received)

    assert received + rest(transcript, ANSWER) == ANSWER


# Log-probabilities

CHAT = {"content": [{"token": str(n)} for n in range(12)], "refusal": None}
COLUMNS = {
    "tokens": [str(n) for n in range(12)],
    "token_logprobs": [-n / 10 for n in range(12)],
    "top_logprobs": [{str(n): -n / 10} for n in range(12)],
    "text_offset": list(range(12)),
}


@pytest.mark.parametrize("logprobs", [CHAT, COLUMNS])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_or_repeated_the_logprobs_add_up(logprobs, seed):
    print(f"seed {seed}")
    draw = random.Random(seed)
    transcript, received = Transcript(), since(logprobs, 12)
    for _ in range(20):
        start = draw.randrange(12)
        part = cut(logprobs, start, start + draw.randrange(1, 4))
        piece = transcript.take({"text": "", "offset": 0, "logprobs": part, "token_offset": start})
        received = joined(received, piece.logprobs)
        assert received == cut(logprobs, 0, num_tokens(received))

    assert joined(received, transcript.rest(Piece("", logprobs)).logprobs) == logprobs


def test_tokens_without_text_are_something_to_send():
    transcript = Transcript()
    first = {"text": "", "offset": 0, "logprobs": cut(CHAT, 0, 1), "token_offset": 0}

    assert transcript.take(first)
    assert not transcript.take(first), "but once only"
    assert not transcript.rest(Piece("", cut(CHAT, 0, 1)))


def cut(logprobs: JsonObject, start: int, end: int) -> JsonObject:
    return {name: part[start:end] if isinstance(part, list) else part for name, part in logprobs.items()}


def joined(one: JsonObject, other: JsonObject | None) -> JsonObject:
    if other is None:
        return one
    return {name: part + other[name] if isinstance(part, list) else part for name, part in one.items()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": 5},
        {"offset": "5"},
        {"offset": -1},
        {"logprobs": 5},
        {"logprobs": {}},
        {"logprobs": {"content": 5}},
        {"logprobs": {"content": [{}]}, "token_offset": "5"},
    ],
    ids=str,
)
def test_a_delta_that_no_worker_wrote_leaves_everything_as_it_was(wrong):
    transcript = Transcript()
    take(transcript, delta(0, 5))

    with pytest.raises(MalformedDelta):
        transcript.take(delta(5, 10) | wrong)

    assert take(transcript, delta(5, 10)) == ANSWER[5:10]
