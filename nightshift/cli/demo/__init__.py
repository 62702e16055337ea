"""The demo model's checkpoint and expected answers: `48213` is `forty-eight thousand two hundred thirteen`.

`examples/demo_model/train.py` trains the model.
"""

import hashlib
from pathlib import Path

# A model's id in the API is the last part of its path.
DEMO_MODEL_ID = "demo_model"

LARGEST_NUMBER = 999_999

# Training sees every smaller number: larger ones are composed of them.
SMALLEST_HELD_OUT_NUMBER = 1_000
HELD_OUT_ONE_IN = 50

# fmt: off
_BELOW_TWENTY = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on


def demo_model_path() -> Path:
    """The directory of the shipped checkpoint."""
    return Path(__file__).parent / DEMO_MODEL_ID


def number_in_words(n: int) -> str:
    """`n` in English words, with hyphenated tens and no "and". Raises ValueError outside 0 to 999,999."""
    if not 0 <= n <= LARGEST_NUMBER:
        raise ValueError(f"{n} is outside 0 to {LARGEST_NUMBER}")
    thousands, rest = divmod(n, 1_000)
    if thousands == 0:
        return _below_thousand(rest)
    words = f"{_below_thousand(thousands)} thousand"
    return f"{words} {_below_thousand(rest)}" if rest else words


def is_held_out(n: int) -> bool:
    """Whether training never shows `n`; true of 19,768 of the million numbers, chosen by hash."""
    digest = hashlib.sha256(f"nightshift demo model {n}".encode()).digest()
    return n >= SMALLEST_HELD_OUT_NUMBER and int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def _below_thousand(n: int) -> str:
    hundreds, rest = divmod(n, 100)
    if hundreds == 0:
        return _below_hundred(rest)
    words = f"{_BELOW_TWENTY[hundreds]} hundred"
    return f"{words} {_below_hundred(rest)}" if rest else words


def _below_hundred(n: int) -> str:
    if n < len(_BELOW_TWENTY):
        return _BELOW_TWENTY[n]
    tens, ones = divmod(n, 10)
    return f"{_TENS[tens]}-{_BELOW_TWENTY[ones]}" if ones else _TENS[tens]
