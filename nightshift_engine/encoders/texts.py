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
    adds_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The tokens of a text of which there is something to say."""

    token_ids: Sequence[int]
    is_cut: bool = False
    num_not_pooled: int = 0
    """First tokens, a prompt's, that are left out of the pooling."""

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
        whole = [text for text in texts if text.adds_special_tokens and text.max_tokens is None]
        cut = [text for text in texts if text.adds_special_tokens and text.max_tokens is not None]
        tokens = iter(self._tokenizer.encode_all([self._written(text) for text in whole]) if whole else [])
        read = iter(self._read(cut) if cut else [])
        return [
            self._bare(text)
            if not text.adds_special_tokens
            else self._input(text, next(tokens))
            if text.max_tokens is None
            else self._cut(text, next(read))
            for text in texts
        ]

    def _bare(self, text: EncoderText) -> TextInput:
        ids = self._tokenizer.encode_all([self._written(text)], add_special_tokens=False)[0]
        return TextTokens(ids[: text.max_tokens], is_cut=ids != ids[: text.max_tokens])

    def _written(self, input: EncoderText) -> str:
        text = input.prompt + input.text
        return text.lower() if self._lowercases else text

    def _read(self, texts: Sequence[EncoderText]) -> list[FirstTokens]:
        limits = [self._room(text) for text in texts]
        return self._reader.read([self._written(text) for text in texts], limits)

    def _room(self, input: EncoderText) -> int:
        """Tokens of a prompt and a text together. Raises InvalidRequest where it has none for the text."""
        assert input.max_tokens is not None, "only texts that may be cut need room"
        room = input.max_tokens - self._num_special
        if room < 1 or input.max_tokens <= self._prompt_length(input.prompt):
            raise InvalidRequest(f"{input.max_tokens} tokens leave no room for the text")
        return room

    def _cut(self, text: EncoderText, first: FirstTokens) -> TextInput:
        room = self._room(text)
        return self._input(text, self._backend.post_process(first.up_to(room)).ids, first.is_cut_at(room))

    def _input(self, text: EncoderText, token_ids: list[int], is_cut: bool = False) -> TextInput:
        left_out = 0 if self._pools_prompts else self._prompt_length(text.prompt)
        return TextTokens(token_ids, is_cut, left_out) if is_cut or left_out else token_ids

    def _prompt_length(self, prompt: str) -> int:
        """Tokens of a prompt by itself, with a special one before it but not behind."""
        if not prompt:
            return 0
        length = self._prompt_lengths.get(prompt)  # there are as many as the checkpoint has prompts
        if length is None:
            is_special = self._backend.encode(self._written(EncoderText("", prompt))).special_tokens_mask
            length = len(is_special) - sum(is_special[-1:])
            self._prompt_lengths[prompt] = length
        return length


def token_ids_objection(token_ids: Sequence[int], vocab_size: int) -> str | None:
    """The reason why a model with so many embeddings cannot take these ids; None: it can."""
    is_known = min(token_ids) >= 0 and max(token_ids) < vocab_size
    return None if is_known else f"has a token id outside 0 to {vocab_size - 1}"
