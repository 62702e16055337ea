"""Log-probabilities as an answer shows them, in OpenAI's two shapes: one for chats, one for completions.

A token is bytes, and may be half a character: `bytes` says which, and its text form escapes them. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.jobs import JsonObject

LOGPROB_MIN: Final = -9999.0  # what OpenAI writes for a token that had no chance at all


@dataclass(frozen=True, slots=True)
class Chance:
    """A token and the natural logarithm of its probability."""

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token of an answer, and what else the model thought of in its place."""

    chance: Chance
    top: Sequence[Chance]  # likeliest first
    text_offset: int  # where in the answer's text it begins, in characters


def chat_logprobs(chosen: Sequence[Chosen]) -> JsonObject:
    """As a chat's choice has them."""
    content = [
        _chat_entry(each.chance) | {"top_logprobs": [_chat_entry(other) for other in each.top]}
        for each in chosen
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(chosen: Sequence[Chosen]) -> JsonObject:
    """As a completion's choice has them: four columns. The token itself is always among the alternatives."""
    return {
        "tokens": [_completion_text(each.chance.token) for each in chosen],
        "token_logprobs": [_shown(each.chance.logprob) for each in chosen],
        "top_logprobs": [_alternatives(each) for each in chosen],
        "text_offset": [each.text_offset for each in chosen],
    }


def num_tokens(logprobs: JsonObject) -> int:
    """How many tokens either shape speaks of."""
    return len(logprobs["content"] if "content" in logprobs else logprobs["tokens"])


def since(logprobs: JsonObject, start: int) -> JsonObject:
    """The same shape without the first `start` tokens."""
    return {name: part[start:] if isinstance(part, list) else part for name, part in logprobs.items()}


def _chat_entry(chance: Chance) -> JsonObject:
    token = _text(chance.token)
    text = _escaped(chance.token) if token is None else token
    return {"token": text, "logprob": _shown(chance.logprob), "bytes": list(chance.token)}


def _alternatives(chosen: Chosen) -> JsonObject:
    alternatives: JsonObject = {}
    for chance in [*chosen.top, chosen.chance]:  # of two that look the same the likelier one counts
        alternatives.setdefault(_completion_text(chance.token), _shown(chance.logprob))
    return alternatives


def _completion_text(token: bytes) -> str:
    text = _text(token)
    return f"bytes:{_escaped(token)}" if text is None else text


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def _shown(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
