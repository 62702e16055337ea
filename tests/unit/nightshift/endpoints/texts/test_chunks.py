"""A streamed answer in chunks."""

import json
from typing import Any

import pytest

from nightshift.endpoints.texts.completions import Completions
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.endpoints.texts.logprobs import Chance, Chosen
from nightshift.endpoints.texts.streams import AnswerHead, Piece
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
