"""Mixtures written out: which routers are known, and that what is not known is left to its module."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from nightshift_engine.execution.decoder.decoder import Decoder
from nightshift_engine.execution.decoder.pack import read_decoder
from nightshift_engine.execution.decoder.weights import Mixture, ModuleMlp
from nightshift_engine.execution.experts.kernels import RoutingRule
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.packing import native_packing
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.execution.decoder.test_decoder import TOKENS, load, relative_error, stir
from tests.unit.engine.tiny.decoders import save_model

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

QWEN: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "head_dim": 8,
}
GROUPED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.8,
    "head_dim": 8,
}
SOFTMAX = RoutingRule(8, 3, "softmax", renormalises=False)
IN_GROUPS = RoutingRule(
    8, 2, "sigmoid", renormalises=True, factor=1.8, groups=4, groups_kept=2, group_scoring="two largest"
)
KNOWN: dict[str, tuple[str, dict[str, Any], RoutingRule]] = {
    "qwen3_moe": ("qwen3_moe", QWEN, SOFTMAX),
    "qwen3_moe, renormalised": (
        "qwen3_moe",
        QWEN | {"norm_topk_prob": True},
        replace(SOFTMAX, renormalises=True),
    ),
    "qwen2_moe, a shared expert with a gate": ("qwen2_moe", QWEN, SOFTMAX),
    "olmoe": ("olmoe", QWEN, SOFTMAX),
    "mixtral": ("mixtral", {"num_local_experts": 8}, replace(SOFTMAX, choices=2, renormalises=True)),
    "granitemoe, a softmax of the chosen": (
        "granitemoe",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "residual_multiplier": 0.3},
        replace(SOFTMAX, choices=2, renormalises=True),
    ),
    "cohere2_moe, sigmoids of the chosen": (
        "cohere2_moe",
        QWEN | {"expert_selection_fn": "sigmoid", "norm_topk_prob": False},
        replace(SOFTMAX, scoring="sigmoid"),
    ),
    "minimax_m2, a correction": (
        "minimax_m2",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 8, "head_dim": 8},
        replace(SOFTMAX, choices=2, scoring="sigmoid", renormalises=True),
    ),
    "ernie4_5_moe, a softmax with a correction": (
        "ernie4_5_moe",
        {"moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 0, "moe_intermediate_size": 24},
        replace(SOFTMAX, choices=2, renormalises=True),
    ),
    "glm4_moe, groups, a dense layer, a shared expert": ("glm4_moe", GROUPED, IN_GROUPS),
    "exaone_moe, groups": ("exaone_moe", GROUPED, IN_GROUPS),
    "solar_open, one of two groups": (
        "solar_open",
        GROUPED | {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 3, "num_key_value_heads": 2},
        replace(IN_GROUPS, choices=3, groups=2, groups_kept=1),
    ),
}


def read(model: Any) -> Decoder:
    calls = check_model(model, "read").calls
    return read_decoder(model, calls, native_packing("float32"), torch.float32)


def mixtures(decoder: Decoder) -> list[Mixture]:
    return [layer.mlp for layer in decoder._weights.layers if isinstance(layer.mlp, Mixture)]


def stir_corrections(model: Any) -> None:
    """They are all 0 in a fresh model."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "correction_bias" in name:
            tensor.data.copy_(0.3 * torch.randn(tensor.shape, generator=generator))


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_router_is_written_out_and_gives_what_its_module_does(name: str, tmp_path: Path) -> None:
    model_type, overrides, rule = KNOWN[name]
    model = stir(load(save_model(tmp_path, model_type, **overrides)))
    stir_corrections(model)

    decoder = read(copy.deepcopy(model))

    assert not decoder.has_modules
    assert {mixture.router.rule for mixture in mixtures(decoder)} == {rule}
    assert all(
        (mixture.router.correction is not None) == ("correction" in name or "groups" in name)
        for mixture in mixtures(decoder)
    )
    assert relative_error(model, decoder, rows=[3, 20, TOKENS - 1]) < 1e-5
    assert relative_error(model, decoder, rows=list(range(TOKENS)), seed=1) < 1e-5


def test_a_router_that_follows_no_known_rule_stays_a_module(tmp_path: Path) -> None:
    """Phi-3.5-MoE's masks what is far from the maximum before each softmax."""
    model = stir(load(save_model(tmp_path, "phimoe", num_local_experts=8)))
    decoder = read(copy.deepcopy(model))
    assert all(isinstance(layer.mlp, ModuleMlp) for layer in decoder._weights.layers)
    assert relative_error(model, decoder, rows=[3, TOKENS - 1]) < 1e-5


@pytest.mark.parametrize("wrong", ["weights", "choices", "denominator"])
def test_a_router_that_differs_a_little_from_a_known_one_stays_a_module(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Qwen3MoeTopKRouter.forward

    def forward(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, chosen = real(self, hidden_states)
        if wrong == "weights":
            weights = weights.sqrt()
        if wrong == "choices":  # the best expert twice removed
            chosen = (chosen + (logits[:, :1] > 0)) % self.num_experts
        if wrong == "denominator":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-2)
        return logits, weights, chosen

    model = load(save_model(tmp_path, "qwen3_moe", **QWEN))
    monkeypatch.setattr(Qwen3MoeTopKRouter, "forward", forward)
    decoder = read(model)
    assert decoder.has_modules


@pytest.mark.skipif(not NativeLinear.can_pack("bfloat16", 2), reason="this processor has no AVX512_BF16")
@pytest.mark.parametrize(
    ("model_type", "overrides", "dtype"),
    [
        ("qwen3_moe", QWEN, torch.bfloat16),
        ("granitemoe", {"num_local_experts": 8, "num_experts_per_tok": 2}, torch.bfloat16),
        ("glm4_moe", GROUPED, torch.float32),
        ("ernie4_5_moe", KNOWN["ernie4_5_moe, a softmax with a correction"][1], torch.float32),
    ],
)
def test_logits_of_a_router_are_rounded_where_its_module_rounds_them(
    model_type: str, overrides: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = load(save_model(tmp_path, model_type, **overrides)).bfloat16()
    calls = check_model(model, model_type).calls
    decoder = read_decoder(model, calls, native_packing("bfloat16"), torch.bfloat16)
    assert {mixture.router.logits_dtype for mixture in mixtures(decoder)} == {dtype}


def test_the_weights_of_a_mixture_are_no_longer_held_twice(tmp_path: Path) -> None:
    model = load(save_model(tmp_path, "qwen2_moe", **QWEN))
    read(model)
    held = {name for name, value in model.named_parameters() if value.dim() > 1 and value.numel()}
    assert held == {"model.embed_tokens.weight"}
