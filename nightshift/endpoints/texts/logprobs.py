"""Log-probabilities of tokens, in the endpoints' shapes.

A token is bytes, possibly part of a character. Each list of a shape has an entry per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.jobs import JsonObject

ALTERNATIVES_MAX: Final = 20  # of a token, in a conversation's answer
LOGPROB_MIN: Final = -9999.0  # OpenAI's value for probability 0


@dataclass(frozen=True, slots=True)
class Chance:
    """A token and the natural logarithm of its probability."""

    token: bytes
    logprob: float | None  # None: nothing is before it


@dataclass(frozen=True, slots=True)
class Chosen:
    """A generated token and its likeliest alternatives."""

    chance: Chance
    top: Sequence[Chance]  # likeliest first
    text_offset: int  # where in the answer's text it begins, in characters


@dataclass(frozen=True, slots=True)
class Ranked:
    """A token of the vocabulary, and its place among all by their probability, from 1."""

    token_id: int
    chance: Chance
    rank: int


def by_token_id(tokens: Sequence[Ranked]) -> JsonObject:
    """A place of a prompt in vLLM's `prompt_logprobs`: its token, and the likeliest ones, by their ids."""
    return {
        str(token.token_id): {
            "logprob": shown(token.chance.logprob),
            "rank": token.rank,
            "decoded_token": token.chance.token.decode(errors="replace"),
        }
        for token in tokens
    }


def num_tokens(logprobs: JsonObject) -> int:
    """The number of tokens. Raises LookupError for another shape."""
    lists = [part for part in logprobs.values() if isinstance(part, list)]
    return len(lists[0])


def since(logprobs: JsonObject, start: int) -> JsonObject:
    """The logprobs without those of the first `start` tokens."""
    return {name: part[start:] if isinstance(part, list) else part for name, part in logprobs.items()}


def token_text(token: bytes) -> str | None:
    """A token as text; None for part of a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def id_name(token_id: int) -> bytes:
    """A token as `return_tokens_as_token_ids` asks for it, in vLLM's form."""
    return b"token_id:%d" % token_id


def escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def shown(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOGPROB_MIN)


def entries(chosen: Sequence[Chosen]) -> list[JsonObject]:
    """Tokens as answers to conversations show them."""
    return [_entry(token.chance) | {"top_logprobs": [*map(_entry, token.top)]} for token in chosen]


def _entry(chance: Chance) -> JsonObject:
    text = token_text(chance.token)
    said = escaped(chance.token) if text is None else text
    return {"token": said, "logprob": shown(chance.logprob), "bytes": list(chance.token)}
