"""Quantised checkpoints and rounded weights, from files to tokens: what is computed, in what memory."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nightshift_engine import EngineConfig
from nightshift_engine.checkpoint.stored_tensors import num_stored_elements
from nightshift_engine.errors import InvalidConfig, UnsupportedAdapter, UnsupportedModel
from nightshift_engine.execution.linears.narrow_native import NarrowNativeLinear
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.loading import weights
from nightshift_engine.loading.footprint import generator_footprint
from nightshift_engine.loading.model import load_model
from tests.unit.engine.loading.test_model_families import LATENT
from tests.unit.engine.tiny import narrow as tiny
from tests.unit.engine.tiny.adapters import save_adapter
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    engine_config,
    greedy_answers,
    load_engine,
    random_prompts,
    reference_greedy,
    save_model,
)
from tests.unit.engine.tiny.narrow import FORMATS, save_narrow, whole_of

TOKENS = 12
needs_native = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)


def linears_of(loaded: Any) -> list[Any]:
    return [linear for layer in loaded.forward_pass._weights.layers for linear in layer.linears]


@pytest.mark.parametrize("name", FORMATS)
def test_answers_are_those_of_the_dequantised_checkpoint(name: str, tmp_path: Path) -> None:
    directory, prompts = save_narrow(tmp_path, FORMATS[name]), random_prompts(4)

    engine = load_engine(directory, dtype="float32")

    wanted = reference_greedy(whole_of(directory), prompts, TOKENS)
    assert greedy_answers(engine, prompts, TOKENS) == wanted
    assert engine.made_by.weight_dtype == f"{FORMATS[name].code} as stored"


@needs_native
@pytest.mark.parametrize("name", FORMATS)
def test_layers_keep_the_codes_where_a_kernel_reads_them(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        loaded = load_model(engine_config(save_narrow(tmp_path, FORMATS[name]), dtype="float32"))

    kinds = {type(linear) for linear in linears_of(loaded)}
    assert (kinds == {NarrowNativeLinear}) == FORMATS[name].is_exact
    said = "8 layers have narrow weights and are computed dequantised" in caplog.text
    assert said != FORMATS[name].is_exact
    assert "14 held narrow in" in caplog.text


@needs_native
@pytest.mark.parametrize(
    ("family", "name"), [("phi3", "fp8 by row"), ("glm4", "fp8"), ("gemma2", "int4"), ("qwen3", "awq")]
)
def test_layers_that_a_family_stores_fused_or_apart_are_read(family: str, name: str, tmp_path: Path) -> None:
    facts = {} if family == "phi3" else {"head_dim": 8}
    directory, prompts = save_narrow(tmp_path, FORMATS[name], family, **facts), random_prompts(3)
    engine = load_engine(directory, dtype="float32")
    assert greedy_answers(engine, prompts, TOKENS) == reference_greedy(whole_of(directory), prompts, TOKENS)


@needs_native
def test_latent_attention_reads_a_layer_that_is_held_narrow(tmp_path: Path) -> None:
    directory, prompts = (
        save_narrow(tmp_path, FORMATS["fp8 in blocks"], "deepseek_v3", **LATENT),
        random_prompts(3),
    )
    engine = load_engine(directory, dtype="float32")
    assert greedy_answers(engine, prompts, TOKENS) == reference_greedy(whole_of(directory), prompts, TOKENS)


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [
        ("gptq", "scales", math.nan),
        ("fp8 in blocks", "weight_scale_inv", math.inf),
        ("int4", "weight_scale", math.nan),
    ],
)
def test_a_scale_that_is_no_finite_number_is_refused_with_its_weight(
    name: str, part: str, value: float, tmp_path: Path
) -> None:
    directory, weight = save_narrow(tmp_path, FORMATS[name]), "model.layers.1.mlp.up_proj"
    tiny.change_tensors(directory, lambda tensors: tensors[f"{weight}.{part}"].view(-1)[0].fill_(value))
    with pytest.raises(UnsupportedModel, match=rf"its weight {weight}\.weight has NaN or infinite values"):
        load_engine(directory, dtype="float32")


@needs_native
def test_a_fused_layer_of_two_schemes_is_dequantised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of three projections has a zero point, and so its layer is one of two kinds."""
    directory, prompts = save_narrow(tmp_path, FORMATS["int4"]), random_prompts(2)
    name = "model.layers.1.self_attn.k_proj."
    weight = load_file(whole_of(directory) / "model.safetensors")[f"{name}weight"]
    parts, numbers = FORMATS["int4 with zeros"].store(weight)
    tiny.change_tensors(directory, lambda tensors: tensors.update({name + k: v for k, v in parts.items()}))
    tiny.change_tensors(whole_of(directory), lambda tensors: tensors.update({f"{name}weight": numbers}))

    engine = load_engine(directory, dtype="float32")

    assert "1 layers have narrow weights and are computed dequantised" in caplog.text
    assert greedy_answers(engine, prompts, TOKENS) == reference_greedy(whole_of(directory), prompts, TOKENS)


@pytest.mark.parametrize(
    "name", mostly_exhaustive(FORMATS, default=["awq", "fp8 in blocks", "gptq act order"])
)
def test_experts_are_dequantised_and_the_rest_is_kept(name: str, tmp_path: Path) -> None:
    facts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
    directory = save_narrow(tmp_path, FORMATS[name], "qwen3_moe", **facts)
    prompts = random_prompts(3)

    engine = load_engine(directory, dtype="float32")

    assert greedy_answers(engine, prompts, TOKENS) == reference_greedy(whole_of(directory), prompts, TOKENS)


def test_experts_in_mxfp4_answer_as_the_dequantised_ones(tmp_path: Path) -> None:
    facts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
    whole, narrow = (
        save_model(tmp_path / name, "gpt_oss", hidden_size=64, intermediate_size=32, head_dim=16, **facts)
        for name in ("whole", "narrow")
    )
    numbers, stored = load_file(whole / "model.safetensors"), {}
    for name, tensor in list(numbers.items()):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = tensor
            continue
        blocks, scales, value = tiny.mxfp4(tensor.transpose(1, 2).contiguous())
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        numbers[name] = value.transpose(1, 2).contiguous()
    save_file(numbers, whole / "model.safetensors", {"format": "pt"})
    save_file(stored, narrow / "model.safetensors", {"format": "pt"})
    tiny.change_config(narrow, quantization_config={"quant_method": "mxfp4"})
    prompts = random_prompts(3)

    engine = load_engine(narrow, dtype="float32")

    assert greedy_answers(engine, prompts, TOKENS) == reference_greedy(whole, prompts, TOKENS)


@needs_native
@pytest.mark.parametrize("name", ["int4", "gptq", "fp8 in blocks", "gptq act order"])
def test_the_memory_is_known_before_anything_is_loaded(name: str, tmp_path: Path) -> None:
    directory = save_narrow(tmp_path, FORMATS[name])
    config = EngineConfig(str(directory), device="cpu", dtype="float32", num_kv_blocks=8)

    estimated = generator_footprint(config, directory).weights

    whole = 4 * num_stored_elements(whole_of(directory), "m")
    dense = generator_footprint(
        EngineConfig(str(whole_of(directory)), device="cpu", num_kv_blocks=8, dtype="float32"),
        whole_of(directory),
    )
    assert dense.weights == whole
    if not FORMATS[name].is_exact:
        assert estimated == whole
        return
    layers = sum(
        tensor.numel()
        for key, tensor in load_file(whole_of(directory) / "model.safetensors").items()
        if tiny.is_layer(key, tensor)
    )
    held = estimated - (whole - 4 * layers)
    assert layers / 2 <= held < (1.5 if name == "fp8 in blocks" else 1) * layers


@needs_native
def test_a_module_holds_no_whole_weight_between_its_runs(tmp_path: Path) -> None:
    config = engine_config(save_narrow(tmp_path, FORMATS["gptq"]), dtype="bfloat16")
    model = weights.load_pretrained(config, torch.device("cpu"))
    linear = model.model.layers[0].mlp.up_proj
    assert linear.weight.untyped_storage().nbytes() == 2
    assert linear.weight.isnan().all(), "whoever reads it past its module computes no wrong numbers"
    assert linear(torch.ones(1, 32, dtype=torch.bfloat16)).abs().sum() > 0
    assert linear.weight.untyped_storage().nbytes() == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"deterministic": True}, "deterministic does not go with|deterministic"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
    ],
)
def test_what_narrow_weights_do_not_go_with_is_refused_by_name(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = save_narrow(tmp_path, FORMATS["awq"])
    with pytest.raises(UnsupportedModel, match=rf"quantised \(awq int4\), which ({reason})"):
        weights.load_pretrained(EngineConfig(str(directory), **settings), torch.device("cpu"))


def test_weights_are_not_rounded_twice(tmp_path: Path) -> None:
    directory = save_narrow(tmp_path, FORMATS["fp8"])
    with pytest.raises(
        InvalidConfig, match="weight_dtype 'int8' would round the weights of a fp8 checkpoint"
    ):
        load_engine(directory, weight_dtype="int8")


@pytest.mark.skipif(not NativeLinear.can_pack("int8", 4), reason="this processor has no AVX512_VNNI")
def test_int8_weights_reach_the_int8_kernel_as_they_are(tmp_path: Path) -> None:
    directory = save_narrow(tmp_path, FORMATS["int8"])
    loaded = load_model(engine_config(directory, weight_dtype="int8"))
    stored = load_file(directory / "model.safetensors")["model.layers.0.self_attn.o_proj.weight_scale"]
    output = loaded.forward_pass._weights.layers[0].attention.output
    assert torch.equal(output._scales[: len(stored)], stored[:, 0])


WIDE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int4_rounds_a_checkpoint_at_load_and_computes_exactly_with_it(dtype: str, tmp_path: Path) -> None:
    directory, prompts = save_model(tmp_path / "whole", **WIDE), random_prompts(3)
    engine = load_engine(directory, weight_dtype="int4", dtype=dtype)
    assert engine.made_by.weight_dtype == "int4"
    if dtype == "bfloat16":
        assert all(len(answer) == TOKENS for answer in greedy_answers(engine, prompts, TOKENS))
        return
    rounded = weights.load_pretrained(engine_config(directory, weight_dtype="int4"), torch.device("cpu"))
    for name, tensor in rounded.named_modules():
        if type(tensor) is torch.nn.Linear and "lm_head" not in name:
            held = tensor.nightshift_held["weight"].whole(torch.float32)
            tiny.change_tensors(
                directory, lambda all, name=name, held=held: all.update({f"{name}.weight": held})
            )
    assert greedy_answers(engine, prompts, TOKENS) == reference_greedy(directory, prompts, TOKENS)


def test_int4_of_a_mixture_is_refused_by_name(tmp_path: Path) -> None:
    facts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
    directory = save_model(tmp_path, "qwen3_moe", **facts)
    with pytest.raises(UnsupportedModel, match="mixture, whose experts weight_dtype 'int4' does not round"):
        load_engine(directory, weight_dtype="int4")


def test_int4_of_layers_that_no_group_divides_is_refused(tmp_path: Path) -> None:
    directory = save_model(tmp_path, hidden_size=24, intermediate_size=40, num_attention_heads=2, head_dim=12)
    with pytest.raises(UnsupportedModel, match="no linear layers that weight_dtype 'int4' could round"):
        load_engine(directory, weight_dtype="int4")


def test_fp8_on_a_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"'fp8' needs a GPU of compute capability 8\.9"):
        load_engine(save_model(tmp_path), weight_dtype="fp8")


@pytest.mark.parametrize("name", ["gptq", "fp8 in blocks"])
def test_adapters_of_a_base_that_is_stored_narrow_are_refused(name: str, tmp_path: Path) -> None:
    base = save_narrow(tmp_path, FORMATS[name])
    adapter = save_adapter(tmp_path / "sum", whole_of(base))

    with pytest.raises(UnsupportedAdapter, match=r"its base keeps weights in .* as stored"):
        load_engine(base, dtype="float32", adapters=(adapter,))
