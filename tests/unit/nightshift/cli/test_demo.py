"""The truth the demo model is checked against."""

from random import Random

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path, is_held_out, number_in_words

# fmt: off
WORD_VALUES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15,
    "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40,
    "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}
# fmt: on


def value_of(words: str) -> int:
    """The sum of the words from left to right: the way back, found without looking at the way there."""
    total = current = 0
    for word in words.replace("-", " ").split():
        if word == "thousand":
            total, current = 1_000 * current, 0
        elif word == "hundred":
            current *= 100
        else:
            current += WORD_VALUES[word]
    return total + current


@pytest.mark.parametrize(
    ("n", "words"),
    [
        *((0, "zero"), (7, "seven"), (10, "ten"), (13, "thirteen"), (20, "twenty"), (21, "twenty-one")),
        *((99, "ninety-nine"), (100, "one hundred"), (101, "one hundred one"), (115, "one hundred fifteen")),
        *((1_000, "one thousand"), (1_001, "one thousand one"), (20_000, "twenty thousand")),
        (48_213, "forty-eight thousand two hundred thirteen"),
        (110_012, "one hundred ten thousand twelve"),
        (999_999, "nine hundred ninety-nine thousand nine hundred ninety-nine"),
    ],
)
def test_a_number_is_written_without_and_and_with_hyphenated_tens(n, words):
    assert number_in_words(n) == words


def test_words_read_back_give_the_number():
    seed = 11
    print(f"seed {seed}")
    for n in [*range(2_000), *Random(seed).sample(range(1_000_000), 5_000)]:
        assert value_of(number_in_words(n)) == n


@pytest.mark.parametrize("n", [-1, 1_000_000])
def test_a_number_out_of_range_is_refused(n):
    with pytest.raises(ValueError, match=f"{n} is outside 0 to 999999"):
        number_in_words(n)


def test_about_one_number_in_fifty_is_held_out_and_none_below_a_thousand():
    held_out = sum(map(is_held_out, range(100_000)))

    assert not any(map(is_held_out, range(1_000)))
    assert held_out == 1_937


def test_the_demo_models_id_is_the_last_part_of_its_path():
    assert demo_model_path().name == DEMO_MODEL_ID
    assert demo_model_path().is_dir()
