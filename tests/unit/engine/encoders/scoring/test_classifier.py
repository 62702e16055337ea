"""A classifier's logits are those of plain transformers, alone and in every batch; others are refused."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.encoders.request import EncodeRequest
from nightshift_engine.encoders.scoring.classifier import ClassifierModel
from nightshift_engine.encoders.scoring.pairs import PairText
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.classifiers import (
    DECODERS,
    FAMILIES,
    change_config,
    reference_logits,
    save_classifier,
    save_tokenizer,
    some_texts,
)
from tests.unit.engine.tiny.encoders import SIZES

TOLERANCE = 2e-5


@pytest.mark.parametrize(
    "family", mostly_exhaustive(FAMILIES, default=["bert", "xlm-roberta", "deberta-v2", "modernbert"])
)
def test_logits_of_texts_and_pairs_are_those_of_transformers_alone_and_batched(
    tmp_path: Path, family: str
) -> None:
    directory = save_classifier(tmp_path, family, num_labels=3)
    texts = some_texts(1, 4, 20, 60, 50, 33, 3, 8)
    classifier = ClassifierModel.load(directory, "float32", "cpu")
    tokens = classifier.tokenize_all(texts)

    expected = reference_logits(directory, texts)
    alone = np.concatenate([classifier.encode([text]) for text in tokens])

    assert np.ptp(expected) > 0.05, "texts must have different scores for this to show anything"
    np.testing.assert_allclose(alone, expected, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(classifier.encode(tokens), expected, atol=TOLERANCE, rtol=0)


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


def test_through_the_engine_a_request_has_logits_for_each_of_its_texts(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, num_labels=3)
    classifier = ClassifierModel.load(directory, "float32", "cpu")
    texts = some_texts(3, 30, 5, 60)
    engine = EncoderEngine(classifier)
    engine.add(EncodeRequest("one", classifier.tokenize_all(texts)))

    outputs = []
    while engine.has_work:  # a step is one pass, over texts of like length
        outputs += engine.step()

    [output] = outputs
    np.testing.assert_allclose(output.embeddings, reference_logits(directory, texts), atol=TOLERANCE, rtol=0)
    engine.check_integrity()


def test_the_second_of_two_texts_is_told_from_the_first(tmp_path: Path) -> None:
    classifier = ClassifierModel.load(save_classifier(tmp_path), "float32", "cpu")

    [pair, text] = classifier.tokenize_all([PairText("w1 w2", "w3"), PairText("w1 w2")])

    assert (pair.token_ids, pair.type_ids) == ([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1])
    assert (text.token_ids, text.type_ids) == ([2, 5, 6, 3], [0, 0, 0, 0])


def test_a_token_id_that_the_model_has_not_is_named(tmp_path: Path) -> None:
    classifier = ClassifierModel.load(save_classifier(tmp_path), "float32", "cpu")

    [pair] = classifier.tokenize_all([PairText("w1 w2", "w3")])

    assert classifier.objection(pair) is None
    assert classifier.objection(replace(pair, texts=([5], [64]))) == "has a token id outside 0 to 63"


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


def test_weights_decide_as_well_as_names(tmp_path: Path) -> None:
    """A head under the name of a base model is no embedder, and a base model under a head's no classifier."""
    directory = change_config(save_classifier(tmp_path / "head"), architectures=["BertModel"])
    with pytest.raises(UnsupportedModel, match="with a head of its own, it is not an embedder"):
        EncoderModel.load(directory)

    path = save_classifier(tmp_path / "base") / "model.safetensors"
    weights = {name: weight for name, weight in load_file(path).items() if not name.startswith("classifier")}
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadFailed, match=r"2 weights are missing: classifier\.bias, classifier\.weight"):
        ClassifierModel.load(path.parent)


def test_a_weight_that_would_be_left_out_is_refused_by_name(tmp_path: Path) -> None:
    path = save_classifier(tmp_path) / "model.safetensors"
    save_file(load_file(path) | {"adapter.weight": torch.ones(3)}, path, metadata={"format": "pt"})

    with pytest.raises(UnsupportedModel, match=r"has no use for adapter\.weight"):
        ClassifierModel.load(tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_finite_numbers_are_refused_by_name(tmp_path: Path, value: float) -> None:
    """Also of a word that no check at load would use."""
    path = save_classifier(tmp_path) / "model.safetensors"
    weights = load_file(path)
    weights["bert.embeddings.word_embeddings.weight"][60] = value
    save_file(weights, path, metadata={"format": "pt"})

    with pytest.raises(UnsupportedModel, match=r"word_embeddings\.weight has NaN or infinite values"):
        ClassifierModel.load(tmp_path)


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    auto_map = {"AutoModelForSequenceClassification": "modeling.Mine"}
    (tmp_path / "modeling.py").write_text("raise SystemExit('this was run')")

    with pytest.raises(UnsupportedModel, match="code of their own"):
        ClassifierModel.load(change_config(save_classifier(tmp_path), auto_map=auto_map))


def test_a_model_that_sees_padding_is_refused(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, "fnet", **SIZES)
    with pytest.raises(UnsupportedModel, match="batching changes its scores"):
        ClassifierModel.load(directory, "float32", "cpu")


def test_a_decoder_whose_last_token_is_found_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    config = AutoConfig.for_model("gpt2", vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)

    with pytest.raises(UnsupportedModel, match="GPT2ForSequenceClassification finds the last token"):
        ClassifierModel.load(tmp_path)


def test_a_head_of_another_size_than_the_configurations_is_refused(tmp_path: Path) -> None:
    BertForSequenceClassification(BertConfig(vocab_size=64, num_labels=3, **SIZES)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    change_config(tmp_path, id2label={"0": "a", "1": "b"}, label2id=None)

    with pytest.raises(
        ModelLoadFailed, match=r"2 weights have another shape: classifier\.bias \(\[3\], not \[2\]\)"
    ):
        ClassifierModel.load(tmp_path)


def test_a_map_of_labels_with_a_gap_is_refused_by_what_is_missing(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, num_labels=2)
    change_config(directory, id2label={"0": "ham", "2": "spam"}, label2id=None)

    with pytest.raises(UnsupportedModel, match="missing: 1; belonging to none: 2"):
        ClassifierModel.load(directory)


def test_a_tokenizer_without_a_padding_token_is_served(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, "bert", num_labels=2)
    save_tokenizer(directory, pad_token=None)
    texts = some_texts(4, 30)
    classifier = ClassifierModel.load(directory, "float32", "cpu")

    logits = classifier.encode(classifier.tokenize_all(texts))

    np.testing.assert_allclose(logits, reference_logits(directory, texts), atol=TOLERANCE, rtol=0)


def test_a_model_that_tells_no_texts_apart_though_its_tokenizer_does_takes_one(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, "roberta", num_labels=2, type_vocab_size=1)
    assert not ClassifierModel.load(directory, "float32", "cpu").takes_pairs
    save_tokenizer(directory, has_types=False)
    assert ClassifierModel.load(directory, "float32", "cpu").takes_pairs


def test_a_special_token_without_an_embedding_is_refused(tmp_path: Path) -> None:
    path = save_classifier(tmp_path) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"]["cls"] = ["[CLS]", 64]
    path.write_text(json.dumps(tokenizer))

    with pytest.raises(UnsupportedModel, match="puts around a text has a token id outside 0 to 63"):
        ClassifierModel.load(tmp_path)


def test_a_tokenizer_that_puts_nothing_between_two_texts_takes_one(tmp_path: Path) -> None:
    directory = save_classifier(tmp_path, "llama", num_labels=2)
    assert ClassifierModel.load(directory, "float32", "cpu").takes_pairs
    save_tokenizer(directory, has_types=False, has_pairs=False)
    assert not ClassifierModel.load(directory, "float32", "cpu").takes_pairs
