"""Many requests are tokenised at a time; what is wrong with one does not touch the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.errors import InvalidRequest
from nightshift_engine import InvalidRequest as EngineRefusal
from workers.serving.servers.tokenizing import tokenize


@dataclass
class Text:
    text: str


class Encode:
    """A token is a letter's number; a text with `?` is none."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, texts: Sequence[Text]) -> list[list[int]]:
        self.calls.append(len(texts))
        if any("?" in part.text for part in texts):
            raise EngineRefusal("half a character")
        return [[*part.text.encode()] for part in texts]


def blame(number: int, index: int, error: EngineRefusal) -> InvalidRequest:
    return InvalidRequest(str(error), param=f"{number}/{index}")


def test_all_texts_are_encoded_at_once_and_given_tokens_stay() -> None:
    encode = Encode()
    refused = InvalidRequest("too long", param="input")
    tokens = tokenize(encode, [[Text("a"), [7, 8]], refused, [Text("bc"), Text("")], []], blame)

    assert tokens == [[[97], [7, 8]], refused, [[98, 99], []], []]
    assert encode.calls == [3]


def test_a_text_that_is_none_is_refused_alone_at_its_place() -> None:
    good, bad, mixed = [Text("a")], [Text("b?")], [Text("c"), [7], Text("?"), Text("?")]
    tokens = tokenize(Encode(), [good, bad, mixed, good], blame)

    assert tokens[0] == tokens[3] == [[97]]
    refused = [error for error in tokens if isinstance(error, InvalidRequest)]
    assert [error.param for error in refused] == ["1/0", "2/2"]


def test_nothing_to_encode_is_not_encoded() -> None:
    encode = Encode()

    assert tokenize(encode, [[[1, 2]], []], blame) == [[[1, 2]], []]
    assert encode.calls == []
