"""What one worker leaves another of a row: every choice, every log-probability, and who made them."""

import json

from workers.carry_over import CarryOver, ChoiceSoFar
from workers.engine import TokenLogprobs

NEVER = float("-inf")


def test_a_carry_over_survives_its_line_of_json() -> None:
    logprobs = [TokenLogprobs(-0.5, (4, 5), (-0.1, NEVER)), TokenLogprobs(NEVER)]
    carry_over = CarryOver([ChoiceSoFar([4, 5], logprobs), ChoiceSoFar()], {"dtype": "float32"})

    line = json.loads(json.dumps(carry_over.to_json(7), allow_nan=False))

    assert line["row"] == 7
    assert CarryOver.from_json(line) == carry_over


def test_a_line_of_an_earlier_version_is_one_choice_made_by_nobody_knows_what() -> None:
    line = {"row": 3, "output_token_ids": [7, 8, 9]}

    assert CarryOver.from_json(line) == CarryOver([ChoiceSoFar([7, 8, 9])], None)


def test_choices_that_have_nothing_yet_are_not_worth_a_line() -> None:
    assert CarryOver([ChoiceSoFar(), ChoiceSoFar()]).is_empty
    assert not CarryOver([ChoiceSoFar(), ChoiceSoFar([1])]).is_empty
