"""Modules after the pooling, against torch's own, and against sentence-transformers' names for them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from tests.unit.engine.tiny.encoders import (
    TOLERANCE,
    declare_modules,
    random_inputs,
    reference,
    save_checkpoint,
    save_module,
    tiny_bert,
)

TANH = "torch.nn.modules.activation.Tanh"
DENSE = {"in_features": 32, "out_features": 12, "bias": True, "activation_function": TANH}


LINEAR = {"linear_weight": torch.zeros(12, 32), "linear_bias": torch.zeros(12)}


def linear(outputs: int, inputs: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(outputs)
    return nn.Linear(inputs, outputs, bias=bias)


def with_modules(directory: Path, *names: str, **pooling: object) -> Path:
    save_checkpoint(directory, tiny_bert())
    declare_modules(directory, pooling or {"pooling_mode": "mean"}, "Transformer", "Pooling", *names)
    return directory


@pytest.mark.parametrize(
    ("name", "activation", "bias"),
    [
        (TANH, nn.Tanh(), True),
        (None, nn.Tanh(), False),
        ("torch.nn.modules.linear.Identity", nn.Identity(), True),
        ("torch.nn.modules.activation.GELU", nn.GELU(), False),
        ("torch.nn.ReLU", nn.ReLU(), True),
    ],
)
def test_a_dense_module_is_a_linear_layer_with_its_activation(tmp_path, name, activation, bias):
    directory = with_modules(tmp_path, "Dense", "Normalize")
    layer = linear(12, 32, bias=bias)
    config = {**DENSE, "bias": bias, "activation_function": name}
    weights = {"linear_weight": layer.weight.data} | ({"linear_bias": layer.bias.data} if bias else {})
    save_module(
        directory / "2_Dense", {key: value for key, value in config.items() if value is not None}, **weights
    )
    inputs = random_inputs(1, [5, 60, 1, 17])

    encoder = EncoderModel.load(directory)

    @torch.inference_mode()
    def pool(tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(activation(layer(tokens.mean(0))), dim=0)

    assert (encoder.dimensions, encoder.is_normalized) == (12, True)
    np.testing.assert_allclose(
        encoder.encode(inputs), reference(directory, inputs, pool), atol=TOLERANCE, rtol=0
    )


def test_modules_follow_one_another_in_their_order(tmp_path):
    """Two poolings side by side, a norm over both, and two dense layers of which one adds its input."""
    directory = with_modules(
        tmp_path, "LayerNorm", "Dense", "Dense", pooling_mode_cls_token=True, pooling_mode_mean_tokens=True
    )
    norm = nn.LayerNorm(64)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    first, second = linear(10, 64), linear(6, 10)
    residual = nn.Linear(10, 6, bias=False)
    save_module(
        directory / "2_LayerNorm",
        {"dimension": 64},
        norm_weight=norm.weight.data,
        norm_bias=norm.bias.data,
    )
    save_module(
        directory / "3_Dense",
        {**DENSE, "in_features": 64, "out_features": 10},
        linear_weight=first.weight.data,
        linear_bias=first.bias.data,
    )
    save_module(
        directory / "4_Dense",
        {**DENSE, "in_features": 10, "out_features": 6, "use_residual": True},
        linear_weight=second.weight.data,
        linear_bias=second.bias.data,
        residual_weight=residual.weight.data,
    )
    inputs = random_inputs(2, [5, 60, 1, 17])

    encoder = EncoderModel.load(directory)

    @torch.inference_mode()
    def pool(tokens: torch.Tensor) -> torch.Tensor:
        middle = torch.tanh(first(norm(torch.cat([tokens[0], tokens.mean(0)]))))
        return torch.tanh(second(middle)) + residual(middle)

    assert (encoder.dimensions, encoder.is_normalized) == (6, False)
    np.testing.assert_allclose(
        encoder.encode(inputs), reference(directory, inputs, pool), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize(
    ("config", "weights", "reason"),
    [
        ({**DENSE, "in_features": 31}, LINEAR, "from 31 to 12 dimensions, and gets vectors of 32"),
        (
            {**DENSE, "activation_function": "mine.Fancy"},
            LINEAR,
            "its activation_function 'mine.Fancy' is not one",
        ),
        (
            {**DENSE, "activation_function": "torch.nn.functional.tanh"},
            LINEAR,
            "'torch.nn.functional.tanh' is not",
        ),
        (
            {**DENSE, "module_input_name": "token_embeddings"},
            LINEAR,
            "its module_input_name 'token_embeddings'",
        ),
        ({**DENSE, "bias": False}, LINEAR, r"no use for its weight linear\.bias"),
        (DENSE, {}, r"model\.safetensors"),
        (DENSE, {"linear_weight": torch.zeros(12, 32)}, r"linear\.bias is missing, not \(12,\)"),
        (
            DENSE,
            {"linear_weight": torch.zeros(11, 32)},
            r"linear\.weight is of shape \(11, 32\), not \(12, 32\)",
        ),
    ],
)
def test_what_a_module_asks_for_or_lacks_is_refused_by_name(tmp_path, config, weights, reason):
    directory = with_modules(tmp_path, "Dense")
    save_module(directory / "2_Dense", config, **weights)

    with pytest.raises((UnsupportedModel, ModelLoadFailed), match=reason):
        EncoderModel.load(directory)


def test_a_module_of_the_checkpoints_own_code_is_refused(tmp_path):
    directory = with_modules(tmp_path)
    modules = json.loads((directory / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (directory / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(UnsupportedModel, match="its module Transformer is not one we compute"):
        EncoderModel.load(directory)
