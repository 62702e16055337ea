"""Settings of a generation_config.json: honoured where they concern one output, else refused."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedModel

_NOT_HONOURED: dict[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None, {}),
    "begin_suppress_tokens": (None, []),
    "forced_decoder_ids": (None, []),
    "penalty_alpha": (None, 0, 0.0),
    "guidance_scale": (None, 1, 1.0),
    "force_words_ids": (None, []),
    "watermarking_config": (None,),
}
"""Settings with the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """The tokens that cannot come next, whatever a request asks for."""

    start_token_id: int
    """`decoder_start_token_id`: the first token that the decoder reads."""
    forced_bos_token_id: int | None
    """The token that follows it; a target language takes its place."""
    do_sample: bool = False
    """Whether requests that say nothing of it are sampled."""
    never: tuple[int, ...] = ()
    """`bad_words_ids` of one token, and `suppress_tokens`."""
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    """Tokens read and generated together before which no sequence ends. `min_new_tokens`, which does not
    count the first token that the decoder reads, takes precedence."""

    def apply(self, logits: Tensor, read: Sequence[array[int] | None], eos_token_ids: frozenset[int]) -> None:
        """Changes `logits` `[rows, vocabulary]` in place; `read` has the decoder's tokens so far of each.

        None of a row whose output a grammar decides: what that asks for may be all that a rule forbids.
        """
        if not self.restrict:
            return
        never, ends = list(self.never), list(eos_token_ids)
        for row, tokens in enumerate(read):
            if tokens is None:
                continue
            banned = never + _ending_known_ngrams(tokens, self.no_repeat_ngram_size)
            if len(tokens) < self.min_length:
                banned += ends
            if banned:
                logits[row, banned] = -torch.inf

    @property
    def restrict(self) -> bool:
        """Whether there is anything that cannot come next."""
        return bool(self.never or self.no_repeat_ngram_size or self.min_length)


def read_rules(model: Any, name: str, eos_token_ids: frozenset[int]) -> DecodingRules:
    """The rules of a transformers model. Raises `UnsupportedModel` naming a setting that is not honoured."""
    for field, neutral in _NOT_HONOURED.items():
        if (value := _setting(model, field)) not in neutral:
            raise UnsupportedModel(
                name, f"its generation config has {field} ({value}), which is not computed"
            )
    bad_words = _setting(model, "bad_words_ids") or []
    # As in transformers, the end of a sequence is no bad word.
    bad_words = [word for word in bad_words if word not in [[end] for end in eos_token_ids]]
    if any(len(word) != 1 for word in bad_words):
        raise UnsupportedModel(name, "its generation config has bad_words_ids of several tokens")
    start = _setting(model, "decoder_start_token_id")
    if start is None:
        start = _setting(model, "bos_token_id")
    if not isinstance(start, int):
        raise UnsupportedModel(
            name, "neither config.json nor its generation config has decoder_start_token_id"
        )
    vocabulary = range(model.config.vocab_size)
    forced = _setting(model, "forced_bos_token_id")
    for field, token in (("decoder_start_token_id", start), ("forced_bos_token_id", forced)):
        if token is not None and token not in vocabulary:
            raise UnsupportedModel(
                name, f"{field} is {token!r}, outside its vocabulary of {model.config.vocab_size}"
            )
    never = {word[0] for word in bad_words} | set(_setting(model, "suppress_tokens") or ())
    min_new_tokens = _setting(model, "min_new_tokens")
    return DecodingRules(
        start_token_id=start,
        forced_bos_token_id=forced,
        do_sample=bool(_setting(model, "do_sample")),
        never=tuple(sorted(token for token in never if token in vocabulary)),
        no_repeat_ngram_size=_setting(model, "no_repeat_ngram_size") or 0,
        min_length=(_setting(model, "min_length") or 0) if min_new_tokens is None else min_new_tokens + 1,
    )


def _setting(model: Any, field: str) -> Any:
    """A setting of the generation config, or of config.json where older checkpoints have it."""
    value = getattr(model.generation_config, field, None)
    return getattr(model.config, field, None) if value is None else value


def _ending_known_ngrams(tokens: array[int], size: int) -> list[int]:
    """Tokens after which the last `size` would be a run that came before."""
    if size < 1 or len(tokens) + 1 < size:
        return []
    last = tokens[len(tokens) - size + 1 :]
    return [
        tokens[at + size - 1] for at in range(len(tokens) - size + 1) if tokens[at : at + size - 1] == last
    ]
