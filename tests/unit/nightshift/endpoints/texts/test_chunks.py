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


@pytest.mark.parametrize("logprobs", [None, 0])
def test_token_ids_of_a_streamed_choice_come_with_its_end(logprobs):
    body = {
        "model": "m",
        "prompt": ["p", "q"],
        "logprobs": logprobs,
        "stream": True,
        "return_token_ids": True,
    }
    request = Completions().parse(body)
    assert isinstance(request, GenerationRequest)
    events = Completions().events(request, AnswerHead("cmpl-1", 1, PriorityClass.STANDARD))
    ends = [{"finish_reason": "stop", "token_ids": [5, n], "prompt_token_ids": [7, n]} for n in (0, 1)]
    pieces = [Piece(text, logprobs_of(text) if logprobs == 0 else None) for text in "ab"]
    for choice in (0, 1):
        sent = [event for piece in pieces for event in events.piece(choice, piece)]
        sent += events.closing(choice, {"choices": ends})
        shown = [json.loads(event.data)["choices"][0] for event in sent]

        nothing = [None] * (len(shown) - 1)
        assert [choice_shown["token_ids"] for choice_shown in shown] == [[] for _ in nothing] + [[5, choice]]
        assert [choice_shown.get("prompt_token_ids") for choice_shown in shown] == [*nothing, [7, choice]]
        assert "".join(choice_shown["text"] for choice_shown in shown) == "ab"


def test_the_prompt_of_a_streamed_chat_is_shown_once_beside_its_choices():
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 2, "stream": True}
    request = Chat().parse(body | {"return_token_ids": True})
    assert isinstance(request, GenerationRequest)
    events = Chat().events(request, AnswerHead("chatcmpl-1", 1, PriorityClass.STANDARD))
    ends = [{"finish_reason": "stop", "token_ids": [n]} for n in (0, 1)]
    answer = {"choices": ends, "prompt_token_ids": [7]}
    opening, chunks = events.opening()[0], [event for n in (0, 1) for event in events.closing(n, answer)]

    assert json.loads(opening.data)["choices"][0]["token_ids"] == []
    assert [json.loads(chunk.data)["choices"][0]["token_ids"] for chunk in chunks] == [[0], [1]]
    assert [json.loads(chunk.data).get("prompt_token_ids") for chunk in chunks] == [[7], None]


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
