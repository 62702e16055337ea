"""Tiny checkpoints in the formats of quantised ones, laid out bit by bit, beside what they stand for.

Nothing here is shared with the code that reads them: words are made by shifting one code at a time, as the
formats' own packages do.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.unit.engine.tiny.decoders import save_model

GROUP = 16
BLOCK = (24, 20)
"""Rows and columns of a block, which divide no layer here."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Stored = dict[str, Tensor]
Rounded = tuple[Stored, Tensor]
"""The tensors that a weight is stored as, by the ends of their names, and its numbers in float32."""


@dataclass(frozen=True)
class NarrowFormat:
    """A way to store weights: its `quantization_config`, and a weight `[n, k]` as it is stored."""

    config: dict[str, Any]
    store: Callable[[Tensor], Rounded]
    code: str
    """The code that a layer holds it as."""
    is_exact: bool = True
    """Its kernel reads it as it is stored."""
    fields: dict[str, Any] = field(default_factory=dict)


def words(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes `[.., m]` as int32 `[.., m * bits / 32]`, the first in the lowest bits."""
    per_word = 32 // bits
    packed = torch.zeros(*codes.shape[:-1], codes.shape[-1] // per_word, dtype=torch.int64)
    for place in range(per_word):
        packed |= codes[..., place::per_word].long() << (bits * place)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def in_groups(weight: Tensor, groups: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 to 2^bits - 1 `[n, k]`, scales and zero points `[n, groups]`, of the groups of columns."""
    top = 2**bits - 1
    scales, zeros = [], []
    for group in range(int(groups.max()) + 1):
        part = weight[:, groups == group]
        if symmetric:
            scales.append(part.abs().amax(1) / (top // 2))
            zeros.append(torch.full((len(weight),), (top + 1) // 2))
        else:
            low, high = part.amin(1).clamp(max=-0.01), part.amax(1).clamp(min=0.01)
            scales.append((high - low) / top)
            zeros.append((-low / scales[-1]).round().clamp(1, top).long())
    scale, zero = torch.stack(scales, 1).half().float(), torch.stack(zeros, 1)
    codes = (weight / scale[:, groups] + zero[:, groups]).round().clamp(0, top).long()
    return codes, scale, zero


def _gptq(
    weight: Tensor, *, bits: int = 4, group: int = GROUP, shuffled: bool = False, added: int = 1
) -> Rounded:
    k = weight.shape[1]
    groups = torch.arange(k) // group
    if shuffled:
        groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
    codes, scale, zero = in_groups(weight, groups, bits, symmetric=False)
    stored = {
        "qweight": words(codes, bits).T.contiguous(),
        "qzeros": words((zero - added).T.contiguous(), bits),
        "scales": scale.T.half().contiguous(),
        "g_idx": groups.int(),
    }
    return stored, (codes - zero[:, groups]).float() * scale[:, groups]


def _awq(weight: Tensor) -> Rounded:
    groups = torch.arange(weight.shape[1]) // GROUP
    codes, scale, zero = in_groups(weight, groups, 4, symmetric=False)
    order = torch.tensor(AWQ_ORDER)

    def in_words(columns: Tensor) -> Tensor:
        return words(columns.unflatten(1, (-1, 8))[:, :, order].flatten(1), 4)

    stored = {
        "qweight": in_words(codes.T),
        "qzeros": in_words(zero.T),
        "scales": scale.T.half().contiguous(),
    }
    return stored, (codes - zero[:, groups]).float() * scale[:, groups]


def _packed(weight: Tensor, *, symmetric: bool, bits: int = 4) -> Rounded:
    n, k = weight.shape
    groups = torch.arange(k) // GROUP
    codes, scale, zero = in_groups(weight, groups, bits, symmetric)
    stored = {
        "weight_packed": words(codes, bits),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor([n, k]),
    }
    scale = scale.bfloat16().float()
    if not symmetric:
        stored["weight_zero_point"] = words(zero.T.contiguous(), bits).T.contiguous()
    return stored, (codes - zero[:, groups]).float() * scale[:, groups]


def _int8(weight: Tensor) -> Rounded:
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def _fp8(weight: Tensor, *, per_row: bool, scale_name: str = "weight_scale") -> Rounded:
    scale = (weight.abs().amax(1, keepdim=True) if per_row else weight.abs().amax()) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    stored = {"weight": codes, scale_name: scale, "input_scale": torch.tensor(0.5)}
    return stored, codes.float() * scale


def _fp8_blocks(weight: Tensor) -> Rounded:
    n, k = weight.shape
    rows, columns = -(-n // BLOCK[0]), -(-k // BLOCK[1])
    scale, codes, numbers = torch.zeros(rows, columns), weight.clone(), weight.clone()
    for i in range(rows):
        for j in range(columns):
            at = (slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1]))
            scale[i, j] = weight[at].abs().amax() / 448
            codes[at] = (weight[at] / scale[i, j]).to(torch.float8_e4m3fn).float()
            numbers[at] = codes[at] * scale[i, j]
    return {"weight": codes.to(torch.float8_e4m3fn), "weight_scale_inv": scale}, numbers


def compressed(format: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
TOKENS = {"num_bits": 8, "strategy": "token", "dynamic": True}
FORMATS = {
    "gptq": NarrowFormat(GPTQ, _gptq, "int4"),
    "gptq v2": NarrowFormat(GPTQ | {"checkpoint_format": "gptq_v2"}, lambda w: _gptq(w, added=0), "int4"),
    "gptq by row": NarrowFormat(GPTQ | {"group_size": -1}, lambda w: _gptq(w, group=w.shape[1]), "int4"),
    "gptq act order": NarrowFormat(
        GPTQ | {"desc_act": True}, lambda w: _gptq(w, shuffled=True), "int4", is_exact=False
    ),
    "gptq 8 bits": NarrowFormat(GPTQ | {"bits": 8}, lambda w: _gptq(w, bits=8), "int8"),
    "awq": NarrowFormat(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        _awq,
        "int4",
    ),
    "int4": NarrowFormat(
        compressed("pack-quantized", INT4 | {"symmetric": True}), lambda w: _packed(w, symmetric=True), "int4"
    ),
    "int4 with zeros": NarrowFormat(
        compressed("pack-quantized", INT4 | {"symmetric": False}),
        lambda w: _packed(w, symmetric=False),
        "int4",
    ),
    "int8": NarrowFormat(
        compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, TOKENS),
        _int8,
        "int8",
    ),
    "fp8 by row": NarrowFormat(
        compressed(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel"},
            TOKENS | {"type": "float"},
        ),
        lambda w: _fp8(w, per_row=True),
        "fp8",
    ),
    "fp8": NarrowFormat(
        {"quant_method": "fp8", "activation_scheme": "static"}, lambda w: _fp8(w, per_row=False), "fp8"
    ),
    "fp8 in blocks": NarrowFormat(
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
        },
        _fp8_blocks,
        "fp8",
    ),
}


def is_layer(name: str, tensor: Tensor) -> bool:
    """Whether quantisers round a tensor: linear layers inside, but for routers."""
    is_linear = name.endswith("proj.weight") and tensor.dim() == 2
    return is_linear and "lm_head" not in name


def save_narrow(directory: Path, format: NarrowFormat, family: str = "llama", **overrides: Any) -> Path:
    """A checkpoint in `directory` / narrow, and the same with its numbers in `directory` / whole.

    Returns the first; `whole_of` the second.
    """
    narrow, whole = directory / "narrow", directory / "whole"
    save_model(whole, family, **overrides)
    shutil.copytree(whole, narrow)
    stored, numbers = {}, {}
    for name, tensor in load_file(whole / "model.safetensors").items():
        if not is_layer(name, tensor):
            stored[name] = numbers[name] = tensor
            continue
        parts, numbers[name] = format.store(tensor.float())
        stored |= {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
    save_file(numbers, whole / "model.safetensors", {"format": "pt"})
    save_file(stored, narrow / "model.safetensors", {"format": "pt"})
    change_config(narrow, quantization_config=format.config)
    return narrow


def whole_of(narrow: Path) -> Path:
    return narrow.parent / "whole"


def change_config(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(directory: Path, change: Callable[[Stored], None]) -> None:
    """Rewrites a checkpoint's file after `change` has done something to its tensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def mxfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[experts, n, k]` as blocks of 32 e2m1 in bytes, e8m0 exponents, and its numbers."""
    blocks = weight.unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=1e-20))) - 2
    scaled = blocks / torch.exp2(exponent)[..., None]
    nearest = (scaled.abs()[..., None] - torch.tensor(E2M1)).abs().argmin(-1)
    codes = nearest + 8 * (scaled < 0)
    numbers = torch.tensor(E2M1)[nearest] * scaled.sign() * torch.exp2(exponent)[..., None]
    packed = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
    return packed, (exponent + 127).to(torch.uint8), numbers.flatten(-2)
