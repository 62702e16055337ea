"""Encoders against the plain reference: transformers' AutoModel, one input at a time, pooled by hand."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, RobertaConfig, RobertaModel

from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.errors import UnsupportedModel
from tests.unit.engine.tiny import classifiers
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.classifiers import LIKE_BERT
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

# --- pooling, as a checkpoint declares it ---


def weighted_mean(tokens: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(tokens) + 1)
    return (tokens * weights[:, None]).sum(0) / weights.sum()


@pytest.mark.parametrize(
    ("declared", "pool"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda tokens: tokens[0]),
        ({"pooling_mode_mean_tokens": True}, lambda tokens: tokens.mean(0)),
        ({"pooling_mode_max_tokens": True}, lambda tokens: tokens.max(0).values),
        ({"pooling_mode_lasttoken": True}, lambda tokens: tokens[-1]),
        ({"pooling_mode": "cls"}, lambda tokens: tokens[0]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, lambda tokens: tokens.sum(0) / len(tokens) ** 0.5),
        ({"pooling_mode_weightedmean_tokens": True}, lambda tokens: weighted_mean(tokens)),
        (
            {"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True},
            lambda tokens: torch.cat([tokens[0], tokens.max(0).values, tokens[-1]]),
        ),
        (
            {"pooling_mode": ["weightedmean", "cls"]},
            lambda tokens: torch.cat([weighted_mean(tokens), tokens[0]]),
        ),
        ({}, lambda tokens: tokens.mean(0)),
    ],
    ids=[
        *("cls", "mean", "max", "lasttoken", "newer spelling", "square root", "weighted", "several"),
        *("several, newer spelling", "none"),
    ],
)
def test_a_declared_pooling_is_the_one_computed(tmp_path, declared, pool):
    is_normalized = "pooling_mode" in declared
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, declared, "Transformer", "Pooling", *["Normalize"] * is_normalized)
    inputs = random_inputs(1, [3, 17, 64, 1, 30])

    vectors = EncoderModel.load(directory).encode(inputs)

    expected = reference(directory, inputs, pool)
    if is_normalized:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("declared", "modules", "reason"),
    [
        ({"pooling_mode": "attention"}, ["Transformer", "Pooling"], "its pooling attention is not one"),
        (
            {"pooling_mode": ["mean", 3]},
            ["Transformer", "Pooling"],
            "its pooling 3 is not one we compute",
        ),
        (
            {"pooling_mode": "mean"},
            ["Transformer", "Pooling", "LSTM"],
            "its module LSTM is not one we compute",
        ),
        (
            {"pooling_mode": "mean"},
            ["Transformer", "Normalize", "Pooling"],
            "its modules Transformer, Normalize, Pooling are in an order",
        ),
        ({"pooling_mode": "mean"}, ["Transformer"], "modules.json lists no Pooling"),
    ],
)
def test_a_pooling_we_do_not_compute_is_refused_by_name(tmp_path, declared, modules, reason):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, declared, *modules)

    with pytest.raises(UnsupportedModel, match=reason):
        EncoderModel.load(directory)


def test_a_default_prompt_and_lower_casing_are_applied_before_tokenizing(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, {"pooling_mode": "mean"}, "Transformer", "Pooling")
    prompts = {"prompts": {"query": "W1 ", "document": "W2 "}, "default_prompt_name": "query"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (directory / "sentence_bert_config.json").write_text('{"do_lower_case": true, "max_seq_length": 12}')

    encoder = EncoderModel.load(directory)

    own = AutoTokenizer.from_pretrained(directory)
    assert encoder.tokenize("W9 w3") == own("w1 w9 w3")["input_ids"]
    assert encoder.max_length == 12


# --- batching ---

POSITIONS = SIZES | {"max_position_embeddings": 66}
FAMILIES = classifiers.FAMILIES | {
    "bert, gelu_new": SIZES | {"hidden_act": "gelu_new"},
    "bert, relu": SIZES | {"hidden_act": "relu"},
    "ibert": POSITIONS,
    "longformer": POSITIONS | {"attention_window": 8},
}
PACKED = ("bert", "bert, gelu_new", "bert, relu", *LIKE_BERT[1:])
NOT_PACKED = ("deberta-v2", "longformer", "modernbert", "mpnet")


@pytest.mark.parametrize(
    ("family", "has_kernels"),
    mostly_exhaustive(
        [*product(PACKED, [True, False]), *product(sorted(FAMILIES.keys() - {*PACKED}), [True])],
        default=[*product([*PACKED, *NOT_PACKED], [True]), ("bert", False)],
    ),
)
def test_every_family_equals_its_reference_however_its_inputs_are_batched(
    tmp_path, family, has_kernels, monkeypatch
):
    if not has_kernels:
        monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")
    torch.manual_seed(0)
    tokens = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model(family.split(",")[0], **tokens, **FAMILIES[family])
    directory = save_checkpoint(tmp_path, AutoModel.from_config(config))
    inputs = random_inputs(6, [64, 3, 20, 1, 33, 17, 17, 63, 50])  # some are run with padding, some without

    encoder = EncoderModel.load(directory)

    expected = reference(directory, inputs, mean_and_normalize)
    np.testing.assert_allclose(encoder.encode(inputs), expected, atol=TOLERANCE, rtol=0)
    assert (encoder._packed is not None) == (encoder.roofline is not None) == (family in PACKED)


def test_a_model_that_sees_only_earlier_tokens_gives_the_last_ones_vector_if_it_declares_nothing(tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", vocab_size=64, num_key_value_heads=2, head_dim=8, **SIZES)
    directory = save_checkpoint(tmp_path, AutoModel.from_config(config))
    inputs = random_inputs(6, [64, 3, 20, 1, 33, 50])

    vectors = EncoderModel.load(directory).encode(inputs)

    expected = reference(directory, inputs, lambda tokens: torch.nn.functional.normalize(tokens[-1], dim=0))
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


def test_a_roberta_has_fewer_positions_than_it_declares_and_computes_up_to_the_last(tmp_path):
    torch.manual_seed(0)
    config = RobertaConfig(vocab_size=64, max_position_embeddings=40, pad_token_id=1, **SIZES)
    directory = save_checkpoint(tmp_path, RobertaModel(config))
    encoder = EncoderModel.load(directory)
    inputs = random_inputs(4, [38, 7])

    assert encoder.max_length == 38
    expected = reference(directory, inputs, mean_and_normalize)
    np.testing.assert_allclose(encoder.encode(inputs), expected, atol=TOLERANCE, rtol=0)


def test_bfloat16_stays_close_to_float32(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    inputs = random_inputs(5, [5, 33, 60])

    half = EncoderModel.load(directory, dtype="bfloat16").encode(inputs)

    full = EncoderModel.load(directory).encode(inputs)
    assert half.dtype == np.float32
    assert np.sum(half * full, axis=1).min() > 0.999
