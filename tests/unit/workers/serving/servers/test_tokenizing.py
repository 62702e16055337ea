"""Many requests are tokenised at a time; what is wrong with one does not touch the others."""

from collections.abc import Sequence

from nightshift.errors import InvalidRequest
from nightshift_engine import InvalidRequest as EngineRefusal
from workers.serving.servers.tokenizing import Text, tokenize


class Encode:
    """A token is a letter's number; a text with `?` is none."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, texts: Sequence[Text]) -> list[list[int]]:
        self.calls.append(len(texts))
        if any("?" in each.text for each in texts):
            raise EngineRefusal("half a character")
        return [[*each.text.encode()] for each in texts]


def test_all_texts_are_encoded_at_once_and_given_tokens_stay() -> None:
    encode = Encode()
    refused = InvalidRequest("too long", param="input")
    found = tokenize(encode, [[Text("a", "p"), [7, 8]], refused, [Text("bc", "p"), Text("", "p")], []])

    assert found == [[[97], [7, 8]], refused, [[98, 99], []], []]
    assert encode.calls == [3]


def test_a_text_that_is_none_is_refused_alone() -> None:
    encode = Encode()
    good, bad, mixed = [Text("a", "x")], [Text("b?", "input")], [Text("c", "x"), Text("?", "other")]
    found = tokenize(encode, [good, bad, mixed, good])

    assert found[0] == found[3] == [[97]]
    refused = found[1:3]
    assert [(each.param, each.code) for each in refused if isinstance(each, InvalidRequest)] == [
        ("input", "invalid_value"),
        ("other", "invalid_value"),
    ]


def test_nothing_to_encode_is_not_encoded() -> None:
    encode = Encode()

    assert tokenize(encode, [[[1, 2]], []]) == [[[1, 2]], []]
    assert encode.calls == []
