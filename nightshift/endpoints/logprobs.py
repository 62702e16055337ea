"""Log-probabilities of tokens, in the shapes of all endpoints. Pure.

A token is bytes, and may be half a character. Every shape is an object whose lists have an entry per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.jobs import JsonObject

LOGPROB_MIN: Final = -9999.0  # what OpenAI writes for a token of probability 0


@dataclass(frozen=True, slots=True)
class Chance:
    """A token and the natural logarithm of its probability."""

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token of an answer, and its likeliest alternatives."""

    chance: Chance
    top: Sequence[Chance]  # likeliest first
    text_offset: int  # where in the answer's text it begins, in characters


def num_tokens(logprobs: JsonObject) -> int:
    """How many tokens these are of. Raises LookupError for what is no shape of log-probabilities."""
    lists = [part for part in logprobs.values() if isinstance(part, list)]
    return len(lists[0])


def since(logprobs: JsonObject, start: int) -> JsonObject:
    """The same shape without the first `start` tokens."""
    return {name: part[start:] if isinstance(part, list) else part for name, part in logprobs.items()}


def token_text(token: bytes) -> str | None:
    """A token as text; None for half a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def shown(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
