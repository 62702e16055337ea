"""Schemes of quantised weights, as `quantization_config` of a config.json states them; others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UnsupportedModel
from .layouts import Format, Layout, awq, gptq, mxfp4, packed, plain

_GROUP_SIZE_MAX = 1 << 20
_CT_LAYOUTS: dict[str, tuple[str, Layout]] = {
    "pack-quantized": (".weight_packed", packed),
    "int-quantized": (".weight", plain),
    "float-quantized": (".weight", plain),
    "naive-quantized": (".weight", plain),
}

_FIELDS = {
    "compressed-tensors": (
        *("format", "config_groups", "ignore", "sparsity_config", "kv_cache_scheme"),
        *("quantization_status", "global_compression_ratio", "version", "run_compressed"),
    ),
    "fp8": (
        *("fmt", "weight_block_size", "activation_scheme", "scale_fmt", "modules_to_not_convert"),
        *("modules_to_convert", "ignored_layers", "dequantize", "is_checkpoint_fp8_serialized"),
    ),
    "fbgemm_fp8": ("activation_scale_ub", "modules_to_not_convert"),
    "mxfp4": ("modules_to_not_convert", "dequantize"),
    "gptq": (
        *("bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "dynamic", "lm_head"),
        *("pack_dtype", "static_groups", "modules_in_block_to_quantize", "is_marlin_format"),
        *("true_sequential", "damp_percent", "damp_auto_increment", "mse", "act_group_aware", "dataset"),
        *("tokenizer", "batch_size", "model_seqlen", "max_input_length", "pad_token_id", "use_cuda_fp16"),
        *("block_name_to_quantize", "module_name_preceding_first_block", "cache_block_outputs", "backend"),
        *("use_exllama", "disable_exllama", "exllama_config", "cache_examples_on_gpu", "meta", "quantizer"),
        *("model_name_or_path", "model_file_base_name", "modules_to_not_convert", "version"),
        *("autoround_version", "iters", "lr", "minmax_lr", "nsamples", "seqlen", "train_bs", "amp"),
        *("enable_minmax_tuning", "enable_quanted_input", "gradient_accumulate_steps", "low_gpu_mem_usage"),
    ),
    "awq": (
        *("bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format", "backend"),
        *("modules_to_not_convert", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"),
    ),
}
"""Fields that are read, or that change no number, by method. Those of the modules that are left need no
reading: the files tell them.
"""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The layout of a checkpoint's narrow weights."""

    method: str
    """The method as its configuration names it, with the bits."""
    anchor: str
    """End of the name of the tensor that holds codes; only int8 and fp8 are codes under `.weight`."""
    layout: Layout
    format: Format
    rounds_inputs: bool = False
    """Inputs may be rounded too, row by row as they come: it was made for that."""
    is_transposed: bool = False
    """The model has these weights the other way round."""

    @property
    def separator(self) -> str:
        """The character between a weight's name and its parts'."""
        return self.anchor[0]


def read_scheme(config: Any, name: str) -> Scheme:
    """Raises `UnsupportedModel` naming the field and what is read."""
    try:
        if not isinstance(config, Mapping):
            raise ValueError(f"it is {config!r}, no object")
        _check_fields(config)
        match method := config.get("quant_method", "of no name"):
            case "gptq":
                return _gptq(config)
            case "awq":
                return _awq(config)
            case "compressed-tensors":
                return _compressed_tensors(config)
            case "fp8":
                return _fp8(config)
            case "fbgemm_fp8":
                return Scheme("fbgemm_fp8", ".weight", plain, Format(), rounds_inputs=True)
            case "mxfp4":
                return Scheme("mxfp4", "_blocks", mxfp4, Format(4, 32), is_transposed=True)
            case _:
                raise ValueError(f"quant_method is {method!r}; read are {', '.join(_FIELDS)}")
    except ValueError as error:
        instead = "serve the checkpoint it was made from; weight_dtype rounds such weights at load"
        raise UnsupportedModel(name, f"it is quantised (quantization_config: {error}); {instead}") from error


def _check_fields(config: Mapping[str, Any]) -> None:
    """Raises ValueError naming a field that is set, and would be ignored."""
    known = _FIELDS.get(method) if isinstance(method := config.get("quant_method"), str) else None
    unknown = () if known is None else sorted(config.keys() - {*known, "quant_method"}, key=str)
    if (field := next((field for field in unknown if config[field]), None)) is not None:
        raise ValueError(f"{field} is {config[field]!r}, which is not read")


def _gptq(config: Mapping[str, Any]) -> Scheme:
    bits, act_order = _bits(config.get("bits"), (4, 8)), bool(config.get("desc_act"))
    made = config.get("checkpoint_format") or config.get("format") or "gptq"
    if made not in ("gptq", "gptq_v2"):
        raise ValueError(f"checkpoint_format is {made!r}; read are gptq and gptq_v2")
    if config.get("dynamic"):
        raise ValueError("dynamic gives modules settings of their own")
    if config.get("is_marlin_format") or config.get("pack_dtype", "int32") != "int32":
        raise ValueError("weights are packed otherwise than in int32 (is_marlin_format, pack_dtype)")
    format = Format(bits, _group_size(config), act_order, zero_added=int(made == "gptq"))
    return Scheme(f"gptq int{bits}", ".qweight", gptq, format)


def _awq(config: Mapping[str, Any]) -> Scheme:
    bits = _bits(config.get("bits", config.get("w_bit")), (4,))
    if (version := str(config.get("version") or config.get("format") or "gemm").lower()) != "gemm":
        raise ValueError(f"version is {version!r}; read is gemm")
    if config.get("zero_point", True) is not True:
        raise ValueError("zero_point is off")
    return Scheme("awq int4", ".qweight", awq, Format(bits, _group_size(config)))


def _fp8(config: Mapping[str, Any]) -> Scheme:
    if (fmt := config.get("fmt", "e4m3")) not in ("e4m3", "e4m3fn"):
        raise ValueError(f"fmt is {fmt!r}; read is e4m3 (e4m3fn, not e4m3fnuz)")
    block = config.get("weight_block_size")
    return Scheme("fp8", ".weight", plain, Format(block=_block(block)), rounds_inputs=True)


def _compressed_tensors(config: Mapping[str, Any]) -> Scheme:
    sparsity = config.get("sparsity_config") or {}
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise ValueError(f"sparsity_config has the format {sparsity['format']!r}")
    if config.get("kv_cache_scheme"):
        raise ValueError("kv_cache_scheme quantises the KV cache; kv_cache_dtype does so here")
    given = config.get("config_groups")
    groups = list(given.values()) if isinstance(given, Mapping) else []
    if not groups or not all(isinstance(group, Mapping) for group in groups):
        raise ValueError("config_groups is no object of groups")
    if any(_arguments(group, "weights") != _arguments(groups[0], "weights") for group in groups[1:]):
        raise ValueError("config_groups has groups whose weights are quantised differently")
    weights, inputs = _arguments(groups[0], "weights"), _arguments(groups[0], "input_activations")
    made = groups[0].get("format") or config.get("format")
    if made not in _CT_LAYOUTS:
        raise ValueError(f"format is {made!r}; read are {', '.join(_CT_LAYOUTS)}")
    anchor, layout = _CT_LAYOUTS[made]
    kind, bits = weights.get("type", "int"), _bits(weights.get("num_bits"), (4, 8))
    if kind not in ("int", "float") or (bits == 4 if layout is plain else kind == "float"):
        raise ValueError(f"weights are {kind}{bits} in the format {made}")
    if inputs and kind == "int" and not inputs.get("dynamic"):
        raise ValueError("input_activations are int8 with scales fixed beforehand; dynamic ones are read")
    if any(group.get("output_activations") for group in groups):
        raise ValueError("output_activations are quantised")
    act_order = weights.get("actorder") in ("group", "dynamic", True)
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if strategy not in ("tensor", "channel", "group", "block"):
        raise ValueError(f"weights have the strategy {strategy!r}")
    size = _group_size(weights) if strategy == "group" else None
    block = _block(weights.get("block_structure")) if strategy == "block" else None
    method = f"compressed-tensors {'fp' if kind == 'float' else 'int'}{bits}"
    return Scheme(method, anchor, layout, Format(bits, size, act_order, block=block), bool(inputs))


def _arguments(group: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = group.get(name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} of config_groups is no object")
    return value


def _bits(value: Any, read: tuple[int, ...]) -> int:
    if type(value) is not int or value not in read:
        raise ValueError(f"weights of {value!r} bits; read are {' and '.join(map(str, read))}")
    return value


def _group_size(config: Mapping[str, Any]) -> int | None:
    """The columns of a group; None: all of a row, which -1 says."""
    size = config.get("group_size", config.get("q_group_size", -1))
    if size in (None, -1):
        return None
    if type(size) is not int or not 2 <= size <= _GROUP_SIZE_MAX or size % 2:
        raise ValueError(f"group_size is {size!r}; it must be -1 or an even number from 2 on")
    return size


def _block(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise ValueError(f"blocks of weights are {value!r}; they must be two sizes")
    return value[0], value[1]
