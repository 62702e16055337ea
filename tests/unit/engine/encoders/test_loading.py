"""Which encoders are refused, and why."""

import shutil

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    CLIPConfig,
    CLIPModel,
    DPRConfig,
    DPRQuestionEncoder,
    FNetConfig,
    FNetModel,
    T5Config,
    T5Model,
)

from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from tests.unit.engine.tiny.classifiers import change_config
from tests.unit.engine.tiny.encoders import (
    SIZES,
    TOLERANCE,
    declare_modules,
    mean_and_normalize,
    random_inputs,
    reference,
    save_checkpoint,
    tiny_bert,
)

TEXT = {"vocab_size": 64, **SIZES}
FNET = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}


@pytest.mark.parametrize(
    ("model_class", "config", "reason"),
    [
        (FNetModel, FNetConfig(**FNET), "batching changes its embeddings"),  # padding leaks into its result
        (
            CLIPModel,
            CLIPConfig(text_config=TEXT, vision_config={"image_size": 32, **SIZES}),
            "clip is not an encoder of text",
        ),
        (T5Model, T5Config(**T5), "t5 is an encoder-decoder"),
        (DPRQuestionEncoder, DPRConfig(**TEXT), "DPRQuestionEncoder gives no vectors of tokens"),
    ],
)
def test_what_gives_no_vectors_of_text_alone_is_refused(tmp_path, model_class, config, reason):
    torch.manual_seed(0)
    directory = save_checkpoint(tmp_path, model_class(config))

    with pytest.raises(UnsupportedModel, match=reason):
        EncoderModel.load(directory)


def test_a_checkpoint_that_lacks_weights_is_refused_instead_of_filled_with_noise(tmp_path):
    small, large = tiny_bert(), tiny_bert()
    large.config.num_hidden_layers = 3
    large.config.architectures = ["BertModel"]
    directory = save_checkpoint(tmp_path, small)
    large.config.save_pretrained(directory)

    with pytest.raises(ModelLoadFailed, match=r"lacks weights: encoder\.layer\.2"):
        EncoderModel.load(directory)


def test_a_broken_pooling_configuration_is_refused(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, {}, "Transformer", "Pooling")
    shutil.rmtree(directory / "1_Pooling")

    with pytest.raises(ModelLoadFailed, match=r"1_Pooling.: config.json cannot be read"):
        EncoderModel.load(directory)


def test_a_name_that_is_neither_a_directory_nor_reachable_is_refused(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(ModelLoadFailed, match="is no directory, and no hub id we can fetch"):
        EncoderModel.load("nobody/no-such-model")


CAUSAL = SIZES | {"num_key_value_heads": 2, "head_dim": 8}


def save_as(tmp_path, architecture, family, sizes):
    torch.manual_seed(0)
    tokens = {"vocab_size": 64, "pad_token_id": 0, "num_labels": 3}
    config = AutoConfig.for_model(family, **tokens, **sizes)
    return save_checkpoint(tmp_path, getattr(transformers, architecture)(config))


@pytest.mark.parametrize(
    ("architecture", "family", "sizes", "base", "head"),
    [
        ("XLMRobertaForSequenceClassification", "xlm-roberta", SIZES, "XLMRobertaModel", "classifier"),
        ("Qwen2ForSequenceClassification", "qwen2", CAUSAL, "Qwen2Model", "score.weight"),
        ("BertForTokenClassification", "bert", SIZES, "BertModel", "classifier"),
    ],
)
def test_a_classifier_is_refused_by_name_and_by_its_weights(
    tmp_path, architecture, family, sizes, base, head
):
    directory = save_as(tmp_path, architecture, family, sizes)

    with pytest.raises(
        UnsupportedModel, match=r"it scores text|BertForTokenClassification classifies tokens"
    ):
        EncoderModel.load(directory)
    change_config(directory, architectures=[base])
    with pytest.raises(UnsupportedModel, match=f"no use for its weights {head}.*not an embedder"):
        EncoderModel.load(directory)


@pytest.mark.parametrize(
    ("architecture", "family", "sizes", "mode", "pool"),
    [
        ("Qwen3ForCausalLM", "qwen3", CAUSAL, "lasttoken", lambda tokens: tokens[-1]),
        ("MPNetForMaskedLM", "mpnet", SIZES | {"max_position_embeddings": 66}, "mean", lambda t: t.mean(0)),
        ("ElectraForPreTraining", "electra", SIZES | {"embedding_size": 16}, "cls", lambda tokens: tokens[0]),
        ("LlamaModel", "llama", CAUSAL, "mean", lambda tokens: tokens.mean(0)),
    ],
)
def test_an_embedder_saved_with_a_head_over_its_vocabulary_pools_as_it_declares(
    tmp_path, architecture, family, sizes, mode, pool
):
    directory = save_as(tmp_path, architecture, family, sizes)
    declare_modules(directory, {"pooling_mode": mode}, "Transformer", "Pooling")
    inputs = random_inputs(7, [50, 3, 20, 1])

    vectors = EncoderModel.load(directory).encode(inputs)

    np.testing.assert_allclose(vectors, reference(directory, inputs, pool), atol=TOLERANCE, rtol=0)


def test_a_model_that_generates_is_not_loaded_to_embed(tmp_path):
    with pytest.raises(
        UnsupportedModel, match=r"generates text, as its architecture and its modules\.json say"
    ):
        EncoderModel.load(save_as(tmp_path, "Qwen3ForCausalLM", "qwen3", CAUSAL))


def test_a_decoder_made_to_see_later_tokens_by_code_of_its_own_is_refused(tmp_path):
    directory = save_as(tmp_path, "Qwen2Model", "qwen2", CAUSAL)
    change_config(directory, auto_map={"AutoModel": "modeling.Bidirectional"})

    with pytest.raises(UnsupportedModel, match="sees only earlier ones"):
        EncoderModel.load(directory)


def test_a_decoder_that_its_configuration_lets_see_later_tokens_is_pooled_by_the_mean(tmp_path):
    directory = save_as(tmp_path, "Qwen2Model", "qwen2", CAUSAL)
    change_config(directory, is_causal=False)
    inputs = random_inputs(8, [30, 2, 17])

    vectors = EncoderModel.load(directory).encode(inputs)

    expected = reference(directory, inputs, mean_and_normalize)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


def test_an_encoders_weight_that_is_not_finite_is_refused_by_name(tmp_path):
    model = tiny_bert()
    torch.nn.init.constant_(model.encoder.layer[1].output.dense.bias, float("nan"))

    with pytest.raises(UnsupportedModel, match=r"encoder\.layer\.1\.output\.dense\.bias has NaN or infinite"):
        EncoderModel.load(save_checkpoint(tmp_path, model))
