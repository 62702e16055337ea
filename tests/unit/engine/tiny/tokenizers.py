"""Tokenizers of the kinds there are, small, and what decoding everything in one go gives with them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from nightshift_engine.text.decoders import REPLACEMENT_CHARACTER
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.decoders import byte_tokenizer

CORPUS = [
    "Grüße aus der Nacht 🌙✨",
    "naïve café — 你好, 世界!",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "plain words and more words",
]
PIECES = ["▁Hello", "▁world", "!", "▁", "a", "▁again", "▁▁b", "ß"]


def _tokenizer(backend: Any) -> Tokenizer:
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"))


def bpe_tokenizer(decoder: Any = None) -> Tokenizer:
    """Byte-level BPE with merges, so that tokens end in the middle of characters and hold several."""
    backend = BackendTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoder or decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    return _tokenizer(backend)


def fallback_tokenizer(*after_bytes: Any) -> Tokenizer:
    """SentencePiece style with a token per byte. U+FFFD is a piece, to write broken bytes down with."""
    words = ["<unk>", *PIECES, REPLACEMENT_CHARACTER, *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = BackendTokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after_bytes]
    backend.decoder = decoders.Sequence(steps)
    return _tokenizer(backend)


def metaspace_tokenizer() -> Tokenizer:
    """SentencePiece style without bytes: a space belongs to the token after it; the very first is dropped."""
    backend = BackendTokenizer(models.Unigram([(word, -1.0) for word in ["<unk>", *PIECES]], unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _tokenizer(backend)


def wordpiece_tokenizer() -> Tokenizer:
    """Words and their continuations: the space is in neither."""
    words = ["[UNK]", "hello", "##ing", "world", "!", "##ß", "'", "s"]
    backend = BackendTokenizer(models.WordPiece({word: id for id, word in enumerate(words)}))
    backend.decoder = decoders.WordPiece()
    return _tokenizer(backend)


@dataclass(frozen=True)
class Kind:
    """A tokenizer, and how its whole text is known independently of what is tested."""

    name: str
    tokenizer: Tokenizer

    @property
    def num_ids(self) -> int:
        """The last two are no token's."""
        return self.tokenizer._backend.get_vocab_size() + 2

    def text_after(self, prompt: list[int], ids: list[int]) -> str:
        """Text that decoding everything in one go gives beyond the prompt, and the character that ends it."""
        prompt, ids = self._visible(prompt), self._visible(ids)
        whole, stop = [*prompt, *ids], len(prompt)
        for start, end in self._characters(whole):
            if start < stop < end:
                stop = end
        known = self._without_broken_bytes(whole)
        return self.tokenizer.decode(known)[len(self.tokenizer.decode(known[:stop])) :]

    def _visible(self, ids: list[int]) -> list[int]:
        """The library leaves the others out before it decodes."""
        backend = self.tokenizer._backend
        return [id for id in ids if not self.tokenizer.is_special(id) and backend.id_to_token(id) is not None]

    @cached_property
    def _bytes(self) -> dict[int, int]:
        ids = [(self.tokenizer._backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256)]
        return {id: byte for id, byte in ids if id is not None}

    def _characters(self, ids: list[int]) -> list[tuple[int, int]]:
        """Where byte tokens make up a character, by trying."""
        characters, start = [], 0
        while start < len(ids):
            ends = [end for end in range(start + 1, start + 5) if self._is_character(ids[start:end])]
            characters += [(start, end) for end in ends]
            start = ends[0] if ends else start + 1
        return characters

    def _is_character(self, ids: list[int]) -> bool:
        try:
            return len(bytes(self._bytes[id] for id in ids).decode()) == 1
        except (KeyError, UnicodeDecodeError):
            return False

    def _without_broken_bytes(self, ids: list[int]) -> list[int]:
        """Bytes of no character as the piece that they are shown as: the library spoils their neighbours."""
        whole = {index for start, end in self._characters(ids) for index in range(start, end)}
        shown = self.tokenizer._backend.token_to_id(REPLACEMENT_CHARACTER)
        return [id if id not in self._bytes or n in whole else shown for n, id in enumerate(ids)]


BYTES = Tokenizer(byte_tokenizer())
BPE = bpe_tokenizer()
FALLBACK = fallback_tokenizer(decoders.Strip(" ", 1, 0))

_THEN_STRIPPED = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])

KINDS = [
    Kind("a token per byte", BYTES),
    Kind("byte-level BPE", BPE),
    Kind(
        "byte-level BPE, then more",
        bpe_tokenizer(_THEN_STRIPPED),
    ),
    Kind("byte fallback, as Llama", FALLBACK),
    Kind("byte fallback, as Gemma", fallback_tokenizer()),
    Kind("metaspace", metaspace_tokenizer()),
    Kind("word pieces", wordpiece_tokenizer()),
]
