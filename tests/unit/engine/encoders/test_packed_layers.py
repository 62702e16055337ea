"""Packed layers compute what transformers' own do, below heads too; only those like BERT's are packed."""

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    LayoutLMConfig,
    LayoutLMModel,
    MPNetConfig,
    MPNetModel,
    RemBertConfig,
    RemBertModel,
)
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.encoders.packed_layers import PackedTextLayers
from nightshift_engine.encoders.scoring.classifier import ClassifierModel
from nightshift_engine.execution.packed_layers import PackedLayer, Stream
from tests.unit.engine.tiny.classifiers import reference_logits, save_classifier, some_texts
from tests.unit.engine.tiny.encoders import (
    SIZES,
    TOLERANCE,
    mean_and_normalize,
    random_inputs,
    reference,
    save_checkpoint,
    tiny_bert,
)

TOKENS = {"vocab_size": 64, "pad_token_id": 0}


def model_of(model_class, config_class, fields):
    torch.manual_seed(0)
    return model_class(config_class(**TOKENS, **SIZES | fields)).eval()


def test_the_linear_layers_that_were_packed_keep_no_memory_of_their_own(tmp_path):
    encoder = EncoderModel.load(save_checkpoint(tmp_path, tiny_bert()))

    layers = encoder._model.encoder.layer
    assert sum(p.numel() for p in layers.parameters() if p.dim() > 1) == 0


def test_packed_layers_that_compute_something_else_are_not_used(tmp_path, monkeypatch, caplog):
    directory = save_checkpoint(tmp_path, tiny_bert())
    monkeypatch.setattr(Stream, "add", lambda stream, linear, x: None)

    encoder = EncoderModel.load(directory)

    assert encoder._packed is None
    assert encoder.roofline is None
    assert "packed layers differ" in caplog.text
    expected = reference(directory, [[5, 6, 7]], mean_and_normalize)
    np.testing.assert_allclose(encoder.encode([[5, 6, 7]]), expected, atol=TOLERANCE, rtol=0)


def test_a_longer_batch_after_a_shorter_one_does_not_change_the_shorter(tmp_path):
    encoder = EncoderModel.load(save_checkpoint(tmp_path, tiny_bert()))
    [short] = random_inputs(3, [5])

    first = encoder.encode([short])
    encoder.encode(random_inputs(4, [64] * 9))

    np.testing.assert_array_equal(first, encoder.encode([short]))


@pytest.mark.parametrize(
    ("model_class", "config_class", "fields"),
    [
        (MPNetModel, MPNetConfig, {"max_position_embeddings": 66}),
        (BertModel, BertConfig, {"is_decoder": True, "add_cross_attention": True}),
        (RemBertModel, RemBertConfig, {"input_embedding_size": 20}),
    ],
)
def test_what_is_built_otherwise_stays_as_it_is(model_class, config_class, fields):
    assert PackedTextLayers.pack(model_of(model_class, config_class, fields)) is None


def test_a_model_whose_embeddings_want_more_than_tokens_keeps_its_own_layers(tmp_path):
    """LayoutLM's forward pass gives them the places of words on a page."""
    directory = save_checkpoint(tmp_path, model_of(LayoutLMModel, LayoutLMConfig, {}))

    encoder = EncoderModel.load(directory)

    assert encoder._packed is None
    assert encoder.roofline is None
    expected = reference(directory, [[5, 6, 7]], mean_and_normalize)
    np.testing.assert_allclose(encoder.encode([[5, 6, 7]]), expected, atol=TOLERANCE, rtol=0)


def test_a_head_that_reads_more_than_the_first_token_gets_all_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(RobertaClassificationHead, "forward", lambda head, x: head.out_proj(x[:, :2].mean(1)))
    directory = save_classifier(tmp_path, "roberta", num_labels=3)
    texts = some_texts(20, 9)

    classifier = ClassifierModel.load(directory, "float32")

    assert type(classifier._model.base_model._layers._layers[-1]) is PackedLayer
    logits = np.concatenate([classifier.encode([text]) for text in classifier.tokenize_all(texts)])
    np.testing.assert_allclose(logits, reference_logits(directory, texts), atol=2e-5, rtol=0)


def test_a_classifiers_packed_layers_that_compute_something_else_are_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Stream, "add", lambda stream, linear, x: None)
    directory = save_classifier(tmp_path, num_labels=3)
    texts = some_texts(4, 30)

    classifier = ClassifierModel.load(directory, "float32")

    assert "packed layers differ" in caplog.text
    logits = classifier.encode(classifier.tokenize_all(texts))
    np.testing.assert_allclose(logits, reference_logits(directory, texts), atol=2e-5, rtol=0)
