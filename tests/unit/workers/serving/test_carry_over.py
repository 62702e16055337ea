"""A carry-over of a row has every choice, every log-probability, and who made them."""

import json
from typing import Any

import pytest

from nightshift_engine import SamplingParams, TokenLogprobs
from nightshift_engine.errors import InvalidState
from workers.serving.carry_over import CarryOver, ChoiceSoFar, decode_carry_overs, encode_carry_overs

NEVER = float("-inf")
LINE: dict[str, Any] = {
    "row": 0,
    "choices": [{"output_token_ids": [4, 5], "logprobs": [[-0.5, [4], [-0.5]], [-0.1, [5], [-0.1]]]}],
    "made_by": None,
}
CHOICE = LINE["choices"][0]


def test_a_carry_over_survives_its_line_of_json() -> None:
    logprobs = [TokenLogprobs(-0.5, (4, 5), (-0.1, NEVER)), TokenLogprobs(NEVER)]
    carry_over = CarryOver([ChoiceSoFar([4, 5], logprobs), ChoiceSoFar()], {"dtype": "float32"})

    line = json.loads(json.dumps(carry_over.to_json(7), allow_nan=False))

    assert line["row"] == 7
    assert CarryOver.from_json(line) == carry_over


def test_a_text_whose_tokens_have_no_ids_survives_too() -> None:
    carry_over = CarryOver([ChoiceSoFar(text="So \u00fcber", tokens_without_ids=3)], {"engine": "vllm"})
    assert CarryOver.from_json(json.loads(json.dumps(carry_over.to_json(7)))) == carry_over
    assert carry_over.num_tokens == 3


def test_the_rows_of_a_shard_survive_together() -> None:
    rows = {7: CarryOver([ChoiceSoFar([4])], {"dtype": "float32"}), 3: CarryOver([ChoiceSoFar([5, 6])])}

    assert decode_carry_overs(encode_carry_overs(rows, 1000)) == rows
    assert decode_carry_overs(encode_carry_overs({}, 1000)) == {}


def test_rows_that_no_reader_would_have_room_for_are_left_out_and_the_others_are_not() -> None:
    rows = {7: CarryOver([ChoiceSoFar([4] * 50)]), 3: CarryOver([ChoiceSoFar([5])])}
    size_bytes = len(encode_carry_overs(rows, 1000))

    assert decode_carry_overs(encode_carry_overs(rows, size_bytes)) == rows
    assert list(decode_carry_overs(encode_carry_overs(rows, size_bytes - 1))) == [7]
    assert list(decode_carry_overs(encode_carry_overs(rows, 100))) == [3]


def encoded(changes: dict[str, Any]) -> bytes:
    return json.dumps(LINE | changes).encode()


def of_choice(**changes: Any) -> bytes:
    return encoded({"choices": [CHOICE | changes]})


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"\n",
        b"\xff",
        b"[" * 100_000,
        encoded({})[:-1],
        encoded({"row": True}),
        encoded({"row": -1}),
        encoded({}) + b"\n" + encoded({}),
        b'{"row": 0}',
        b'{"row": 0, "choices": []}',
        encoded({"choices": {}}),
        encoded({"choices": [{}]}),
        encoded({"made_by": 1}),
        of_choice(output_token_ids="ab"),
        of_choice(output_token_ids=[4, 5.5]),
        of_choice(output_token_ids=[4, True]),
        of_choice(output_token_ids=[4, -5]),
        of_choice(text=5),
        of_choice(text="So", tokens=-1),
        of_choice(text="So", tokens="2"),
        of_choice(logprobs=None),
        of_choice(logprobs=[1]),
        of_choice(logprobs=[[-0.5, [4], [-0.5]]]),
        of_choice(output_token_ids=[4], logprobs=[[-0.5, ["4"], [-0.5]]]),
        of_choice(output_token_ids=[4], logprobs=[[-0.5, [-4], [-0.5]]]),
        of_choice(output_token_ids=[4], logprobs=[[-0.5, [4, 5], [-0.5]]]),
        of_choice(output_token_ids=[4], logprobs=[["-0.5", [4], [-0.5]]]),
    ],
)
def test_what_no_worker_has_written_is_refused(data: bytes) -> None:
    assert decode_carry_overs(encoded({})), "unchanged it is one"
    with pytest.raises(InvalidState):
        decode_carry_overs(data)


LIKELIEST = TokenLogprobs(-0.5, (4, 5), (-0.5, -0.9))


@pytest.mark.parametrize(
    ("choices", "wanted", "fits"),
    [
        ([ChoiceSoFar()], SamplingParams(logprobs=2), True),
        ([ChoiceSoFar([4, 5])], SamplingParams(max_tokens=2), True),
        ([ChoiceSoFar([4], [LIKELIEST])], SamplingParams(logprobs=2), True),
        ([], SamplingParams(), False),
        ([ChoiceSoFar(text="So", tokens_without_ids=1)], SamplingParams(), False),
        ([ChoiceSoFar([4], [LIKELIEST] * 2)], SamplingParams(logprobs=2), False),
        ([ChoiceSoFar([4], [LIKELIEST])], SamplingParams(logprobs=3), False),
    ],
)
def test_only_a_beginning_of_what_is_asked_for_fits(
    choices: list[ChoiceSoFar], wanted: SamplingParams, fits: bool
) -> None:
    assert (CarryOver(choices).misfit([wanted]) is None) == fits
