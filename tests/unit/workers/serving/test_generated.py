"""Requests that are not streamed: their listeners hear of their ends, and `generated` tells the rest once."""

import pytest

from nightshift.fleet.models import Model, ModelKind
from tests.faults.kit.fake_engine import CONTEXT_LENGTH, FakeEngine
from tests.unit.workers.serving.conftest import Listener, submit
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import SamplingDefaults
from workers.serving.models import Models
from workers.serving.servers.text_server import TextServer

MODEL = "fake"
TOKENS = 9


class Stepped(TextServer):
    """Its engine steps when the test says."""

    def steps_by_hand(self, count: int) -> None:
        for _ in range(count):
            self._step()


@pytest.fixture
def server() -> Stepped:
    model = Model(id=MODEL, kind=ModelKind.DECODER, context_length=CONTEXT_LENGTH, revision="r")
    engine = FakeEngine(num_seqs_max=8)
    return Stepped(model, engine, lambda error: None, SamplingDefaults())  # type: ignore[arg-type]


def ask(server: Stepped, carry_over: CarryOver | None = None, **fields: object) -> Listener:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": TOKENS, "seed": 1, **fields}
    return submit(Models([server]), "/v1/completions", body, carry_over=carry_over, is_streamed=False)


def told(server: Stepped, choices: int = 1) -> list[list[int]]:
    """The tokens of each choice."""
    token_ids: list[list[int]] = [[] for _ in range(choices)]
    for progress in server.generated("one"):
        token_ids[progress.choice] += progress.token_ids
    return token_ids


def test_the_listener_hears_of_the_end_alone_and_every_token_is_told_once(server: Stepped) -> None:
    listener = ask(server)
    assert told(server) == [[]]
    server.steps_by_hand(4)
    first = told(server)[0]
    assert told(server) == [[]]
    server.steps_by_hand(3)
    second = told(server)[0]
    assert (len(first), len(second), listener.token_ids, listener.ended.is_set()) == (4, 3, [], False)

    server.steps_by_hand(TOKENS - 7)

    answer = listener.wait()
    assert len(listener.token_ids) == 2
    assert bytes(first + second + listener.token_ids).decode() == answer.body["choices"][0]["text"]
    assert answer.usage.completion_tokens == TOKENS
    assert told(server) == [[]]


def test_choices_are_told_apart(server: Stepped) -> None:
    listener = ask(server, n=2)
    server.steps_by_hand(4)
    token_ids = told(server, choices=2)
    assert [len(ids_of_choice) for ids_of_choice in token_ids] == [4, 4]

    server.steps_by_hand(TOKENS - 4)

    for index, choice in enumerate(listener.wait().body["choices"]):
        assert bytes(token_ids[index] + listener.choices[index].token_ids).decode() == choice["text"]


def test_a_continued_request_tells_its_earlier_tokens_first(server: Stepped) -> None:
    whole = ask(server)
    server.steps_by_hand(TOKENS)
    tokens = whole.token_ids

    listener = ask(server, CarryOver([ChoiceSoFar(tokens[:5])]))
    assert told(server) == [tokens[:5]]
    server.steps_by_hand(TOKENS)

    assert listener.token_ids == tokens[5:]
    assert listener.wait().body["choices"] == whole.wait().body["choices"]


def test_a_cancelled_request_tells_nothing(server: Stepped) -> None:
    ask(server)
    server.steps_by_hand(2)

    server.cancel("one")

    assert told(server) == [[]]
