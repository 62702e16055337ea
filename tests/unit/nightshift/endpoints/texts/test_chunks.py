"""A streamed answer in chunks."""

import json
from typing import Any

import pytest

from nightshift.endpoints.responses import Responses
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.completions import Completions
from nightshift.endpoints.texts.generation import Choice, GenerationRequest
from nightshift.endpoints.texts.logprobs import Chance, Chosen
from nightshift.endpoints.texts.streams import AnswerHead, Piece
from nightshift.jobs import Usage
from nightshift.jobs.priorities import PriorityClass


def logprobs_of(*tokens: str) -> dict[str, Any]:
    return Completions().logprobs([Chosen(Chance(token.encode(), -1.0), [], 0) for token in tokens])


@pytest.mark.parametrize(
    ("pieces", "chunks"),
    [
        ([Piece("a", logprobs_of("a"))], [("a", 1)]),
        ([Piece("a", logprobs_of("a")), Piece("b", logprobs_of("b"))], [("a", 1), ("b", 1)]),
        ([Piece("", logprobs_of("a")), Piece("a")], [("a", 1)]),
        ([Piece("a"), Piece("b", logprobs_of("ab")), Piece("c")], [("abc", 1)]),
        ([], [("", None)]),
    ],
)
def test_every_chunk_of_a_completion_with_logprobs_has_some(pieces, chunks):
    request = Completions().parse({"model": "m", "prompt": "p", "logprobs": 0, "stream": True})
    assert isinstance(request, GenerationRequest)
    events = Completions().events(request, AnswerHead("cmpl-1", 1, PriorityClass.STANDARD))
    answer = {"choices": [{"finish_reason": "stop"}]}
    sent = [*(event for piece in pieces for event in events.piece(0, piece)), *events.closing(0, answer)]
    choices = [json.loads(event.data)["choices"][0] for event in sent]

    assert [(c["text"], c["logprobs"] and len(c["logprobs"]["tokens"])) for c in choices] == chunks
    assert [c["finish_reason"] for c in choices] == [None] * (len(chunks) - 1) + ["stop"]


def test_a_chats_thought_comes_in_deltas_of_both_names():
    request = Chat().parse({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True})
    assert isinstance(request, GenerationRequest)
    events = Chat().events(request, AnswerHead("chatcmpl-1", 1, PriorityClass.STANDARD))
    (event,) = events.reasoning(0, "hm")

    (choice,) = json.loads(event.data)["choices"]
    assert choice["delta"] == {"reasoning_content": "hm", "reasoning": "hm"}
    assert choice["finish_reason"] is None


@pytest.mark.parametrize("endpoint", [Chat(), Responses()], ids=str)
def test_an_answer_is_made_of_its_values_again_thought_included(endpoint):
    text = {"messages": [{"role": "user", "content": "a"}]} if endpoint.name == "chat" else {"input": "a"}
    head = AnswerHead(endpoint.id_prefix + "1", 1, PriorityClass.STANDARD)
    for choice in (
        Choice("7", "stop", reasoning="hm"),
        Choice("", "length", reasoning="hm"),
        Choice("7", "stop"),
    ):
        body = endpoint.answer(
            endpoint.parse({"model": "m"} | text), head, choices=[choice], usage=Usage(1, 9, 0, 5)
        )
        values = endpoint.values(body)

        assert values["reasoning"] == (choice.reasoning or None)
        assert endpoint.choice_of(values) == choice
        assert endpoint.reasoning(body) == [choice.reasoning]
