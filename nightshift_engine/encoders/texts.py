"""Texts to an encoder's inputs: a prompt before each, cut only where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidRequest
from ..text.first_tokens import FirstTokens, FirstTokensReader

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer  # which imports torch


@dataclass(frozen=True, slots=True)
class EncoderText:
    text: str
    prompt: str = ""
    max_tokens: int | None = None
    """Cut it to at most so many tokens, special ones and the prompt's included; None: never."""


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The tokens of a text of which there is something to say."""

    token_ids: Sequence[int]
    is_cut: bool = False
    num_not_pooled: int = 0
    """So many of the first tokens, a prompt's, are left out of the pooling."""

    def __len__(self) -> int:
        return len(self.token_ids)


TextInput = Sequence[int] | TextTokens


class TextTokenizer:
    """A model's tokenizer as its checkpoint uses it. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, *, lowercases: bool, pools_prompts: bool) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.plain_backend()
        self._reader = FirstTokensReader(self._backend)
        self._num_special = int(self._backend.num_special_tokens_to_add(False))
        self._lowercases = lowercases
        self._pools_prompts = pools_prompts
        self._prompt_lengths: dict[str, int] = {}

    @property
    def reads_parts(self) -> bool:
        """Whether a text that will be cut is read no further than it must be."""
        return self._reader.reads_parts

    def tokenize(self, texts: Sequence[EncoderText]) -> list[TextInput]:
        """Raises `InvalidRequest` where a text is none, or nothing is left of one that is cut."""
        whole = [each for each in texts if each.max_tokens is None]
        cut = [each for each in texts if each.max_tokens is not None]
        tokens = iter(self._tokenizer.encode_all([self._written(each) for each in whole]) if whole else [])
        read = iter(self._read(cut) if cut else [])
        return [
            self._input(each, next(tokens)) if each.max_tokens is None else self._cut(each, next(read))
            for each in texts
        ]

    def _written(self, each: EncoderText) -> str:
        text = each.prompt + each.text
        return text.lower() if self._lowercases else text

    def _read(self, texts: Sequence[EncoderText]) -> list[FirstTokens]:
        limits = [self._room(each) for each in texts]
        return self._reader.read([self._written(each) for each in texts], limits)

    def _room(self, each: EncoderText) -> int:
        """Tokens of a prompt and a text together. Raises InvalidRequest where it has none for the text."""
        assert each.max_tokens is not None, "only texts that may be cut need room"
        room = each.max_tokens - self._num_special
        if room < 1 or each.max_tokens <= self._prompt_length(each.prompt):
            raise InvalidRequest(f"{each.max_tokens} tokens leave no room for the text")
        return room

    def _cut(self, each: EncoderText, first: FirstTokens) -> TextInput:
        room = self._room(each)
        return self._input(each, self._backend.post_process(first.up_to(room)).ids, first.is_cut_at(room))

    def _input(self, each: EncoderText, token_ids: list[int], is_cut: bool = False) -> TextInput:
        left_out = 0 if self._pools_prompts else self._prompt_length(each.prompt)
        return TextTokens(token_ids, is_cut, left_out) if is_cut or left_out else token_ids

    def _prompt_length(self, prompt: str) -> int:
        """Tokens of a prompt by itself, with a special one before it but not behind."""
        if not prompt:
            return 0
        found = self._prompt_lengths.get(prompt)  # there are as many as the checkpoint has prompts
        if found is None:
            is_special = self._backend.encode(self._written(EncoderText("", prompt))).special_tokens_mask
            found = len(is_special) - sum(is_special[-1:])
            self._prompt_lengths[prompt] = found
        return found
