"""A classifier's logits are those of plain transformers, alone and in every batch; others are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
)

from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.encoders.packed_layers import PackedBase
from nightshift_engine.encoders.scoring.classifier import ClassifierModel
from nightshift_engine.encoders.scoring.pairs import PairText
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from nightshift_engine.execution.packed_layers import FirstTokenLayer
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.classifiers import (
    DECODERS,
    FAMILIES,
    LIKE_BERT,
    change_config,
    reference_logits,
    save_classifier,
    save_tokenizer,
    some_texts,
)
from tests.unit.engine.tiny.encoders import SIZES

TOLERANCE = 2e-5

Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("family", "dtype", "has_kernels"),
    mostly_exhaustive(
        [
            *product(LIKE_BERT, ["float32", "bfloat16"], [True, False]),
            *product(sorted(FAMILIES.keys() - {*LIKE_BERT}), ["float32"], [True]),
        ],
        default=[
            *((family, "float32", True) for family in (*LIKE_BERT, "deberta-v2", "modernbert")),
            ("bert", "bfloat16", False),
            ("distilbert", "float32", False),
        ],
    ),
)
def test_logits_of_texts_and_pairs_are_those_of_transformers_alone_and_batched(
    tmp_path: Path, family: str, dtype: str, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on packed layers, which compute no more than a head reads."""
    if not has_kernels:
        monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")
    directory = save_classifier(tmp_path, family, num_labels=3, max_position_embeddings=130)
    save_tokenizer(directory, has_types=family not in ("distilbert", "modernbert"), model_max_length=128)
    texts = some_texts(1, 4, 20, 60, 50, 33, 3, 8, 100, 90, 64)  # some are run with padding, some without
    classifier = ClassifierModel.load(directory, dtype, "cpu")
    tokens = classifier.tokenize_all(texts)

    expected = reference_logits(directory, texts)
    alone = np.concatenate([classifier.encode([text]) for text in tokens])

    tolerance = TOLERANCE if dtype == "float32" else 0.05 * np.abs(expected).max()
    assert np.ptp(expected) > 0.05, "texts must have different scores for this to show anything"
    np.testing.assert_allclose(alone, expected, atol=tolerance, rtol=0)
    np.testing.assert_allclose(classifier.encode(tokens), expected, atol=tolerance, rtol=0)
    base = classifier._model.base_model
    assert isinstance(base, PackedBase) == (classifier.roofline is not None) == (family in LIKE_BERT)
    assert not isinstance(base, PackedBase) or isinstance(base._layers._layers[-1], FirstTokenLayer)


@pytest.mark.parametrize(
    ("family", "pad_token_id"),
    mostly_exhaustive(product(DECODERS, [0, None]), default=[(DECODERS[0], None), (DECODERS[1], 0)]),
)
def test_a_decoder_with_such_a_head_is_scored_at_its_last_token_with_a_padding_token_or_without(
    tmp_path: Path, family: str, pad_token_id: int | None
) -> None:
    directory = save_classifier(tmp_path, family, num_labels=2, pad_token_id=pad_token_id)
    save_tokenizer(directory, has_types=False, pad_token=None)
    texts = some_texts(1, 4, 20, 60, 33)
    classifier = ClassifierModel.load(directory, "float32", "cpu")

    logits = classifier.encode(classifier.tokenize_all(texts))

    expected = reference_logits(directory, texts)
    assert np.ptp(expected) > 0.05, "texts must have different scores for this to show anything"
    np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=0)


def test_the_second_of_two_texts_is_told_from_the_first(tmp_path: Path) -> None:
    classifier = ClassifierModel.load(save_classifier(tmp_path), "float32", "cpu")

    [pair, text] = classifier.tokenize_all([PairText("w1 w2", "w3"), PairText("w1 w2")])

    assert (pair.token_ids, pair.type_ids) == ([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1])
    assert (text.token_ids, text.type_ids) == ([2, 5, 6, 3], [0, 0, 0, 0])
    assert classifier.objection(pair) is None
    assert classifier.objection(replace(pair, texts=([5], [64]))) == "has a token id outside 0 to 63"


def save_bert(
    directory: Path, *, with_weights: Tensors | None = None, without: str = "", **fields: Any
) -> None:
    """A classifier whose weights and configuration are changed."""
    path = save_classifier(directory, num_labels=fields.pop("num_labels", 2)) / "model.safetensors"
    weights = {name: weight for name, weight in load_file(path).items() if not without or without not in name}
    save_file(weights | (with_weights or {}), path, metadata={"format": "pt"})
    change_config(directory, **fields)


def save_gpt2(directory: Path) -> None:
    config = AutoConfig.for_model("gpt2", vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
    save_tokenizer(directory)


def save_special_token(directory: Path) -> None:
    path = save_classifier(directory) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"]["cls"] = ["[CLS]", 64]
    path.write_text(json.dumps(tokenizer))


EMBEDDINGS = "bert.embeddings.word_embeddings.weight"  # also of words that no check at load would use
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no head": (
        partial(save_bert, without="classifier"),
        r"2 weights are missing: classifier\.bias, classifier\.weight",
    ),
    "a weight that would be left out": (
        partial(save_bert, with_weights={"adapter.weight": torch.ones(3)}),
        r"has no use for adapter\.weight",
    ),
    "NaN": (
        partial(save_bert, with_weights={EMBEDDINGS: torch.full((64, 32), torch.nan)}),
        r"word_embeddings\.weight has NaN or infinite values",
    ),
    "infinity": (
        partial(save_bert, with_weights={EMBEDDINGS: torch.full((64, 32), torch.inf)}),
        r"word_embeddings\.weight has NaN or infinite values",
    ),
    "code of its own": (
        partial(save_bert, auto_map={"AutoModelForSequenceClassification": "modeling.Mine"}),
        "code of their own",
    ),
    "a head of another size": (
        partial(save_bert, num_labels=3, id2label={"0": "a", "1": "b"}, label2id=None),
        r"2 weights have another shape: classifier\.bias \(\[3\], not \[2\]\)",
    ),
    "a gap among labels": (
        partial(save_bert, id2label={"0": "ham", "2": "spam"}, label2id=None),
        "missing: 1; belonging to none: 2",
    ),
    "a special token without an embedding": (
        save_special_token,
        "puts around a text has a token id outside 0 to 63",
    ),
    "padding that is seen": (
        lambda directory: save_classifier(directory, "fnet", **SIZES),
        "batching changes its scores",
    ),
    "a last token that is found otherwise": (save_gpt2, "GPT2ForSequenceClassification finds the last token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_scored_wrongly_is_refused_by_name(tmp_path: Path, name: str) -> None:
    save, reason = REFUSED[name]
    (tmp_path / "modeling.py").write_text("raise SystemExit('this was run')")
    save(tmp_path)

    with pytest.raises((UnsupportedModel, ModelLoadFailed), match=reason):
        ClassifierModel.load(tmp_path, "float32", "cpu")


@pytest.mark.parametrize("modules", [None, "[]"])
def test_a_classifier_is_one_whatever_lies_beside_it_and_never_an_embedder(
    tmp_path: Path, modules: str | None
) -> None:
    directory = save_classifier(tmp_path)
    if modules is not None:
        (directory / "modules.json").write_text(modules)

    assert read_kind(str(directory)).name == "classifier"
    with pytest.raises(UnsupportedModel, match="it scores text"):
        EncoderModel.load(directory)


def test_a_model_that_tells_no_texts_apart_though_its_tokenizer_does_takes_one(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, "roberta", num_labels=2, type_vocab_size=1)
    assert not ClassifierModel.load(directory, "float32", "cpu").takes_pairs
    save_tokenizer(directory, has_types=False)
    assert ClassifierModel.load(directory, "float32", "cpu").takes_pairs


def test_a_tokenizer_that_puts_nothing_between_two_texts_takes_one(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, "llama", num_labels=2)
    assert ClassifierModel.load(directory, "float32", "cpu").takes_pairs
    save_tokenizer(directory, has_types=False, has_pairs=False)
    assert not ClassifierModel.load(directory, "float32", "cpu").takes_pairs
