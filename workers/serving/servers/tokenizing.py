"""Texts of requests to token ids, many requests at a time: a tokenizer then takes less time for each."""

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

from nightshift.errors import InvalidRequest
from nightshift_engine import InvalidRequest as EngineRefusal
from workers.serving.model_server import Tokens, invalid


@dataclass(frozen=True, slots=True)
class Text:
    """A text to be tokenised."""

    text: str
    place: str  # in its request, for errors
    is_conversation: bool = False  # its special tokens are in it already

    def blamed_for(self, error: EngineRefusal) -> str:
        """The place that an error is about."""
        return self.place


Part = Text | Sized
"""A text, or the token ids that a request gives, as its model takes them."""

Encode = Callable[[Sequence[Text]], Sequence[Any]]
"""Raises the engine's InvalidRequest if any of them is no text."""


CUT_TO_CONTEXT: Final = -1
"""Of `truncate_prompt_tokens`, as in vLLM."""


def tokens_kept(asked: int | None, context_length: int) -> int | None:
    """What longer texts are cut to, by `truncate_prompt_tokens`; None: they are refused.

    Raises InvalidRequest.
    """
    if asked == CUT_TO_CONTEXT:
        return context_length
    if asked is not None and not 1 <= asked <= context_length:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be 1 to {context_length}, or -1 for what the model takes; "
            f"got {asked}.",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    return asked


def tokenize(
    encode: Encode, requests: Sequence[Sequence[Part] | InvalidRequest]
) -> list[Tokens | InvalidRequest]:
    """The token ids of each request's parts, or why it cannot run."""
    known = [parts for parts in requests if not isinstance(parts, InvalidRequest)]
    encoded = iter(_encoded(encode, [part for parts in known for part in parts if isinstance(part, Text)]))
    return [parts if isinstance(parts, InvalidRequest) else _filled(parts, encoded) for parts in requests]


def _filled(parts: Sequence[Part], encoded: Iterator[Any]) -> Tokens | InvalidRequest:
    tokens: list[Any] = []
    refused: InvalidRequest | None = None
    for part in parts:
        each = next(encoded) if isinstance(part, Text) else part
        if isinstance(each, InvalidRequest):
            refused = refused or each
        else:
            tokens.append(each)
    return tokens if refused is None else refused


def _encoded(encode: Encode, texts: Sequence[Text]) -> list[Any]:
    if not texts:
        return []
    try:
        return [*encode(texts)]
    except EngineRefusal as error:
        if len(texts) == 1:
            return [invalid(error, texts[0].blamed_for(error))]
        return [each for text in texts for each in _encoded(encode, [text])]
