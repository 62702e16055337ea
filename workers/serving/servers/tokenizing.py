"""Texts of requests to token ids, many requests at a time: a tokenizer then takes less time for each."""

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Final

from nightshift.errors import InvalidRequest
from nightshift_engine import InvalidRequest as EngineRefusal
from workers.serving.model_server import Tokens

Part = Any
"""A text as the model's tokenizer takes it; or what is `Sized`: the token ids that a request gives."""

Encode = Callable[[Sequence[Any]], Sequence[Any]]
"""Raises the engine's InvalidRequest if any of them is no text."""

Blame = Callable[[int, int, EngineRefusal], InvalidRequest]
"""Gives an error about a request's part, by their numbers, the place that it has in the request."""

CUT_TO_CONTEXT: Final = -1
"""A value of `truncate_prompt_tokens`, as in vLLM."""


def tokens_kept(truncate_prompt_tokens: int | None, context_length: int) -> int | None:
    """Tokens to which longer texts are cut; None: they are refused. Raises InvalidRequest."""
    if truncate_prompt_tokens == CUT_TO_CONTEXT:
        return context_length
    if truncate_prompt_tokens is not None and not 1 <= truncate_prompt_tokens <= context_length:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be 1 to {context_length}, or -1 for what the model takes; "
            f"got {truncate_prompt_tokens}.",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    return truncate_prompt_tokens


def tokenize(
    encode: Encode, requests: Sequence[Sequence[Part] | InvalidRequest], blame: Blame
) -> list[Tokens | InvalidRequest]:
    """The token ids of each request's parts, or why it cannot run."""
    texts = [
        (number, index, part)
        for number, parts in enumerate(requests)
        if not isinstance(parts, InvalidRequest)
        for index, part in enumerate(parts)
        if not isinstance(part, Sized)
    ]
    encoded = iter(_encoded(encode, texts, blame))
    return [parts if isinstance(parts, InvalidRequest) else _filled(parts, encoded) for parts in requests]


def _filled(parts: Sequence[Part], encoded: Iterator[Any]) -> Tokens | InvalidRequest:
    tokens = [part if isinstance(part, Sized) else next(encoded) for part in parts]
    return next((token_ids for token_ids in tokens if isinstance(token_ids, InvalidRequest)), tokens)


def _encoded(encode: Encode, texts: Sequence[tuple[int, int, Part]], blame: Blame) -> list[Any]:
    if not texts:
        return []
    try:
        return [*encode([part for _, _, part in texts])]
    except EngineRefusal as error:
        if len(texts) == 1:
            number, index, _ = texts[0]
            return [blame(number, index, error)]
        return [tokens for text in texts for tokens in _encoded(encode, [text], blame)]
