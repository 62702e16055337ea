"""Quantised checkpoints: read as their formats lay them out, and refused by name where that is not known."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.checkpoint.narrow.layouts import Format, mxfp4, plain
from nightshift_engine.checkpoint.narrow.schemes import read_scheme
from nightshift_engine.checkpoint.narrow.tensors import read_narrow
from nightshift_engine.checkpoint.narrow.weight import join_rows, round_weight
from nightshift_engine.errors import UnsupportedModel
from tests.unit.engine.tiny import narrow as tiny
from tests.unit.engine.tiny.narrow import FORMATS, GPTQ, INT4, TOKENS, compressed

AWQ = FORMATS["awq"].config
WEIGHT = torch.randn(48, 64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_has_the_numbers_that_its_format_says(name: str) -> None:
    scheme = read_scheme(FORMATS[name].config, "m")
    stored, numbers = FORMATS[name].store(WEIGHT)

    read = scheme.layout(stored, scheme.format)

    assert read.shape == WEIGHT.shape
    assert read.code == FORMATS[name].code
    assert torch.equal(read.dequantized(torch.float32), numbers)
    assert torch.equal(read.dequantized(torch.bfloat16), numbers.bfloat16())


def test_blocks_of_fp8_are_read_as_transformers_reads_them() -> None:
    codes = torch.randn(256, 384, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=torch.Generator().manual_seed(2))

    read = plain({"weight": codes, "weight_scale_inv": scales}, Format(block=(128, 128)))

    wanted = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
    assert torch.equal(read.dequantized(torch.float32), wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_scales_that_are_exponents_are_powers_of_two(dtype: torch.dtype) -> None:
    exponents = torch.tensor([[120], [127], [130]], dtype=torch.uint8)
    codes = torch.ones(3, 4).to(torch.float8_e4m3fn)
    read = plain({"weight": codes, "weight_scale": exponents.view(dtype)}, Format())
    assert read.dequantized(torch.float32)[:, 0].tolist() == [2**-7, 1, 8]


def test_experts_in_mxfp4_are_read_as_transformers_reads_them() -> None:
    blocks, scales, numbers = tiny.mxfp4(torch.randn(3, 16, 64, generator=torch.Generator().manual_seed(3)))

    read = mxfp4({"blocks": blocks, "scales": scales}, Format(4, 32)).dequantized(torch.float32)

    assert torch.equal(read, numbers)
    wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(read.transpose(1, 2), wanted)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("gptq", "no object"),
        ({"bits": 4}, "quant_method is 'of no name'; read are compressed-tensors"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": "hqq"}, "'hqq'"),
        (GPTQ | {"bits": 3}, "weights of 3 bits; read are 4 and 8"),
        (GPTQ | {"bits": True}, "weights of True bits"),
        (GPTQ | {"group_size": 0}, "group_size is 0"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (GPTQ | {"format": "bitblas"}, "checkpoint_format is 'bitblas'"),
        (GPTQ | {"dynamic": {"-:.*": {}}}, "dynamic gives modules settings"),
        (GPTQ | {"pack_dtype": "int16"}, "packed otherwise than in int32"),
        (GPTQ | {"adapter": {"name": "lora"}}, "adapter is {'name': 'lora'}, which is not read"),
        (AWQ | {"rotation": "hadamard"}, "rotation is 'hadamard', which is not read"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype is 'fp4', which is not read"),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, "kv_cache_scheme is 'static'"),
        ({"quant_method": "fbgemm_fp8", "weight_block_size": [1, 2]}, r"weight_block_size is \[1, 2\]"),
        ({"quant_method": "mxfp4", "group_size": 16}, "group_size is 16, which is not read"),
        ({"quant_method": ["gptq"]}, r"quant_method is \['gptq'\]"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point is off"),
        ({"quant_method": "fp8", "fmt": "e4m3fnuz"}, "fmt is 'e4m3fnuz'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"blocks of weights are \[128\]"),
        (compressed("nvfp4-pack-quantized", INT4), "format is 'nvfp4-pack-quantized'"),
        (compressed("marlin-24", INT4), "format is 'marlin-24'"),
        (compressed("int-quantized", INT4), "int4 in the format int-quantized"),
        (
            compressed("int-quantized", {"num_bits": 8}, TOKENS | {"dynamic": False}),
            "scales fixed beforehand",
        ),
        (compressed("int-quantized", {"num_bits": 8, "strategy": "atom"}), "the strategy 'atom'"),
        (compressed("pack-quantized", INT4) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (compressed("pack-quantized", INT4) | {"sparsity_config": {"format": "sparse-24"}}, "sparse-24"),
        (compressed("pack-quantized", INT4) | {"config_groups": {}}, "config_groups is no object"),
        (
            compressed("pack-quantized", INT4) | {"transform_config": {"config_groups": {"u": {}}}},
            "transform_config is .*, which is not read",
        ),
        (
            compressed("pack-quantized", {"num_bits": 8, "type": "float"}),
            "float8 in the format pack-quantized",
        ),
    ],
)
def test_a_scheme_that_is_not_read_is_refused_by_name(config: Any, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        read_scheme(config, "m")


def test_groups_that_are_quantised_differently_are_refused() -> None:
    config = compressed("pack-quantized", INT4)
    config["config_groups"]["group_1"] = {"weights": {"num_bits": 8, "type": "float"}}
    with pytest.raises(UnsupportedModel, match="groups whose weights are quantised differently"):
        read_scheme(config, "m")


PROJECTION = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("format", "part", "value", "reason"),
    [
        ("gptq", "scales", torch.ones(3, 32), r"scales is float32 \[3, 32\], not \[2, 32\]"),
        ("gptq", "scales", None, "scales is missing"),
        (
            "gptq",
            "scales",
            torch.ones(2, 32, dtype=torch.uint8),
            "scales is stored as uint8, not as floating",
        ),
        ("int4", "weight_scale", torch.ones(32, 2, dtype=torch.int8), "weight_scale is stored as int8"),
        ("int8", "weight_scale", torch.ones(32, 1, dtype=torch.uint8), "weight_scale is stored as uint8"),
        ("gptq", "qzeros", torch.ones(2, 4), r"qzeros is float32 \[2, 4\], not int32 \[2, 4\]"),
        ("awq", "qzeros", torch.ones(2, 4), r"qzeros is float32 \[2, 4\], not int32 \[2, 4\]"),
        ("gptq", "qzeros", None, "qzeros is missing"),
        ("gptq act order", "g_idx", None, "g_idx is missing, which act order needs"),
        ("gptq", "qweight", torch.ones(4, 32), "qweight is float32"),
        (
            "awq",
            "qzeros",
            torch.ones(2, 3, dtype=torch.int32),
            r"qzeros is int32 \[2, 3\], not int32 \[2, 4\]",
        ),
        ("int4", "weight_scale", torch.ones(32, 1), r"weight_scale is float32 \[32, 1\], not \[32, 2\]"),
        ("int4 with zeros", "weight_zero_point", torch.ones(32, 2), "weight_zero_point is float32"),
        ("int8", "weight_scale", None, "stored as int8 and has no weight_scale beside it"),
        ("int8", "weight_scale", torch.ones(31, 1), r"not \[32, 1\]"),
        ("int8", "weight_zero_point", torch.ones(31, 1), r"weight_zero_point is .* \[31, 1\], not int8 \[32"),
        (
            "gptq",
            "qweight",
            torch.ones(4, 20, dtype=torch.int32),
            "qweight has 20 outputs, whose zero points fill no words of 8",
        ),
        ("fp8 in blocks", "weight_scale_inv", torch.ones(1, 1), r"weight_scale_inv is \[1, 1\] for a weight"),
    ],
)
def test_a_part_that_is_missing_or_misshapen_is_refused_with_the_weight(
    tmp_path: Path, format: str, part: str, value: torch.Tensor | None, reason: str
) -> None:
    directory = tiny.save_narrow(tmp_path, FORMATS[format])

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(f"{PROJECTION}.{part}", None)
        if value is not None:
            tensors[f"{PROJECTION}.{part}"] = value

    tiny.change_tensors(directory, change)

    with pytest.raises(UnsupportedModel, match=rf"{PROJECTION}.weight \(.*\): .*{reason}"):
        read_narrow(directory, "m")


def test_a_group_index_beyond_the_groups_is_refused(tmp_path: Path) -> None:
    directory = tiny.save_narrow(tmp_path, FORMATS["gptq act order"])
    stored = {"g_idx": torch.full((32,), 2, dtype=torch.int32)}
    tensors = FORMATS["gptq act order"].store(torch.ones(32, 32))[0] | stored
    narrow = read_narrow(directory, "m")
    assert narrow is not None
    with pytest.raises(UnsupportedModel, match="g_idx names a group that is none of its 2"):
        narrow.weights[f"{PROJECTION}.weight"].read(lambda name: tensors[name.rpartition(".")[2]], "m")


def test_a_checkpoint_without_a_tensor_of_its_scheme_is_refused(tmp_path: Path) -> None:
    directory = tiny.save_narrow(tmp_path, FORMATS["gptq"])
    tiny.change_config(directory, quantization_config=FORMATS["int4"].config)
    with pytest.raises(UnsupportedModel, match=r"no tensor \*\.weight_packed of compressed-tensors int4"):
        read_narrow(directory, "m")


def test_an_encoder_in_few_bits_is_refused_as_what_it_is(tmp_path: Path) -> None:
    directory = tiny.save_narrow(tmp_path, FORMATS["fp8"])
    tiny.change_config(directory, architectures=["LlamaModel"])
    with pytest.raises(UnsupportedModel, match=r"it is quantised \(fp8\), and embeds text; .* decoders"):
        read_kind(str(directory))


@pytest.mark.parametrize("code", ["int4", "int8", "fp8"])
def test_rounding_errs_by_half_a_step_at_most(code: Any) -> None:
    rounded = round_weight(WEIGHT, code)
    assert rounded is not None
    error = (rounded.dequantized(torch.float32) - WEIGHT).abs()
    step = rounded.scales.repeat_interleave(WEIGHT.shape[1] // rounded.scales.shape[1], 1)
    largest = {"int4": 0.5 * step, "int8": 0.5 * step, "fp8": (WEIGHT.abs() / 16).clamp(min=step / 512)}
    assert (error <= largest[code] * 1.001).all()


def test_rounding_keeps_zeros_and_rows_of_zeros() -> None:
    weight = torch.zeros(2, 64)
    weight[0, ::2] = torch.linspace(0.5, 3, 32)
    for code in ("int4", "int8", "fp8"):
        rounded = round_weight(weight, code)  # type: ignore[arg-type]
        assert rounded is not None
        assert (rounded.dequantized(torch.float32)[weight == 0] == 0).all()


def test_int4_of_inputs_that_no_group_divides_is_left() -> None:
    assert round_weight(torch.ones(4, 48), "int4") is None


@pytest.mark.parametrize("code", ["int4", "int8", "fp8"])
def test_rows_are_picked_in_any_code(code: Any) -> None:
    weight, order = round_weight(WEIGHT, code), torch.tensor([3, 1, 47])
    assert weight is not None
    picked = weight.rows(order).dequantized(torch.float32)
    assert torch.equal(picked, weight.dequantized(torch.float32)[order])


def test_weights_of_one_kind_are_joined_and_others_are_not() -> None:
    first, second = (round_weight(torch.randn(4, 64), "int4") for _ in range(2))
    assert first is not None
    assert second is not None
    joined = join_rows([first, second])
    assert joined is not None
    parts = [weight.dequantized(torch.float32) for weight in (first, second)]
    assert torch.equal(joined.dequantized(torch.float32), torch.cat(parts))
    picked = joined.rows(torch.tensor([7, 0]))
    assert torch.equal(picked.dequantized(torch.float32), torch.cat(parts)[[7, 0]])
    other = round_weight(torch.randn(4, 64), "int8")
    assert other is not None
    assert join_rows([first, other]) is None
