"""Experts packed: what transformers' own experts compute, and a token never depends on the others."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine.execution.experts.packed import PackedExperts, pack_experts
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.native_grouped import native_grouped_pack
from nightshift_engine.execution.linears.packing import native_packing
from nightshift_engine.execution.packed_modules import pack_modules
from tests.unit.engine.execution.decoder.test_decoder import load
from tests.unit.engine.tiny.decoders import save_model

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

NUM_EXPERTS = 7
HIDDEN = 32
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": NUM_EXPERTS, "num_experts_per_tok": 3},
    "qwen3_moe": {"num_experts": NUM_EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
    "olmoe": {"num_experts": NUM_EXPERTS, "num_experts_per_tok": 3, "hidden_act": "gelu_pytorch_tanh"},
}


def experts_of(model: Any) -> Any:
    return next(module for name, module in model.named_modules() if name.endswith("experts"))


def routed(tokens: int, choices: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, choices and weights; some experts get no token."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.stack(
        [torch.randperm(NUM_EXPERTS - 1, generator=generator)[:choices] for _ in range(tokens)]
    )
    weights = torch.rand(tokens, choices, generator=generator)
    return torch.randn(tokens, HIDDEN, generator=generator), index, weights


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_packed_experts_compute_what_their_module_does(model_type: str, tokens: int, tmp_path: Path) -> None:
    module = experts_of(load(save_model(tmp_path, model_type, **FAMILIES[model_type])))
    packed = pack_experts(module, native_grouped_pack("float32"))
    assert packed is not None
    with torch.inference_mode():
        given = routed(tokens)
        assert torch.allclose(packed(*given), module(*given), atol=1e-5)


@pytest.mark.skipif(not NativeLinear.can_pack("bfloat16", 2), reason="this processor has no AVX512_BF16")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_experts_are_near_those_in_float32(dtype: Any, tmp_path: Path) -> None:
    if dtype == "int8" and not NativeLinear.can_pack("int8", 4):
        pytest.skip("this processor has no AVX512_VNNI")
    overrides = FAMILIES["qwen3_moe"] | {"moe_intermediate_size": 24}
    module = experts_of(load(save_model(tmp_path, "qwen3_moe", **overrides)))
    packed = pack_experts(copy.deepcopy(module).bfloat16(), native_grouped_pack(dtype))
    assert packed is not None
    with torch.inference_mode():
        x, index, weights = routed(40)
        wanted, got = module(x, index, weights), packed(x.bfloat16(), index, weights.bfloat16()).float()
    assert (got - wanted).norm() < 0.03 * wanted.norm()


def test_experts_of_another_kind_stay_modules(tmp_path: Path) -> None:
    """GPT-OSS's have biases, and clip what they gate."""
    model = load(save_model(tmp_path, "gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8))
    assert pack_experts(experts_of(model), native_grouped_pack("float32")) is None


def test_the_memory_of_packed_experts_is_given_back(tmp_path: Path) -> None:
    model = load(save_model(tmp_path, "mixtral", **FAMILIES["mixtral"]))
    module = experts_of(model)
    pack_modules(model, native_packing("float32"), torch.float32, head=model.get_output_embeddings())
    assert isinstance(experts_of(model), PackedExperts)
    assert module.gate_up_proj.numel() == module.down_proj.numel() == 0
