"""The ways in which formats lay the bits of a weight out in tensors, each read into a `NarrowWeight`.

Every function checks the shapes of what it is given, and raises ValueError naming the part. They compute on
the meta device too: so a checkpoint's shapes are checked from the headers of its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .weight import Code, NarrowWeight, pack_halves

Parts = Mapping[str, Tensor]
"""The tensors of a weight, by the ends of their names."""


@dataclass(frozen=True, slots=True)
class Format:
    """Facts of a checkpoint's configuration that its tensors do not tell."""

    bits: int = 8
    group_size: int | None = None
    """Columns of a group. None: a row is one."""
    act_order: bool = False
    """A group's columns do not lie together: the tensor g_idx says where they are."""
    zero_added: int = 0
    """Number added to stored zero points: 1 in GPTQ's first format."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale."""


Layout = Callable[[Parts, Format], NarrowWeight]


def gptq(parts: Parts, format: Format) -> NarrowWeight:
    """Reads GPTQ: words of int32 along the inputs, `qweight` `[k / per word, n]`; zero points along the
    outputs.

    https://github.com/AutoGPTQ/AutoGPTQ, `QuantLinear.pack`; stored zero points are one too small.
    """
    words = _part(parts, "qweight", torch.int32, 2)
    per_word = 32 // format.bits
    k, n = len(words) * per_word, words.shape[1]
    if n % per_word:
        raise ValueError(f"qweight has {n} outputs, whose zero points fill no words of {per_word}")
    size, groups = _groups(k, format)
    scales = _scales(parts, "scales", (groups, n)).T.contiguous()
    zeros = _unpacked(_shaped(parts, "qzeros", (groups, n // per_word), torch.int32), format.bits).T
    zeros = zeros.to(torch.int16) + (format.zero_added - (1 << (format.bits - 1)))
    index = _column_groups(parts, "g_idx", k, size, groups, format)
    codes, code = _signed(words.T.contiguous(), format.bits)
    return NarrowWeight(code, codes, scales, zeros.contiguous(), size, index)


def awq(parts: Parts, format: Format) -> NarrowWeight:
    """Reads AWQ: words of int32 along the outputs, `qweight` `[k, n / 8]`, eight columns in the order 0, 2,
    4, 6, 1, 3, 5, 7.

    https://github.com/casper-hansen/AutoAWQ, `WQLinear_GEMM.from_linear`.
    """
    words = _part(parts, "qweight", torch.int32, 2)
    k, n = len(words), 8 * words.shape[1]
    size, groups = _groups(k, format)
    scales = _scales(parts, "scales", (groups, n)).T.contiguous()
    zeros = _interleaved(_shaped(parts, "qzeros", (groups, n // 8), torch.int32)).T.to(torch.int16) - 8
    codes = pack_halves(_interleaved(words).T.contiguous())
    return NarrowWeight("int4", codes, scales, zeros.contiguous(), size)


def packed(parts: Parts, format: Format) -> NarrowWeight:
    """Reads compressed-tensors' "pack-quantized": words of int32 along the inputs, zero points along the
    outputs.

    https://github.com/vllm-project/compressed-tensors, `pack_to_int32`: codes are stored with half their
    range added.
    """
    words = _part(parts, "weight_packed", torch.int32, 2)
    per_word = 32 // format.bits
    n, k = len(words), words.shape[1] * per_word
    if "weight_shape" in parts and not words.is_meta and parts["weight_shape"].tolist() != [n, k]:
        raise ValueError(
            f"weight_shape {parts['weight_shape'].tolist()} is not that of weight_packed {[n, k]}"
        )
    size, groups = _groups(k, format)
    scales = _scales(parts, "weight_scale", (n, groups))
    zeros = None
    if "weight_zero_point" in parts:
        stored = _shaped(parts, "weight_zero_point", (-(-n // per_word), groups), torch.int32)
        zeros = _unpacked(stored.T.contiguous(), format.bits).T[:n].to(torch.int16) - (1 << (format.bits - 1))
        zeros = zeros.contiguous()
    index = _column_groups(parts, "weight_g_idx", k, size, groups, format)
    codes, code = _signed(words, format.bits)
    return NarrowWeight(code, codes, scales, zeros, size, index)


def plain(parts: Parts, format: Format) -> NarrowWeight:
    """Reads a `weight` stored as int8 or fp8 with one scale, or one per row, group of a row or block.

    compressed-tensors' "int-quantized" and "float-quantized", DeepSeek's fp8 with `weight_scale_inv` (which
    it multiplies by all the same), and fbgemm's.
    """
    codes = parts["weight"]
    if codes.dim() != 2:
        raise ValueError(f"weight is {list(codes.shape)}, not a matrix")
    n, k = codes.shape
    name = next((name for name in ("weight_scale", "weight_scale_inv") if name in parts), None)
    if name is None:
        raise ValueError(f"weight is stored as {_said(codes.dtype)} and has no weight_scale beside it")
    code: Code = "int8" if codes.dtype == torch.int8 else "fp8"
    stored = _floating(name, parts[name] if code == "int8" else _powers_of_two(parts[name]))
    size, (rows, groups) = k, (n, 1)
    if format.block is not None:
        size = format.block[1]
        rows, groups = -(-n // format.block[0]), -(-k // size)
    elif format.group_size is not None:
        size, groups = _groups(k, format)
    single = stored.numel() == 1 and format.block is None and format.group_size is None
    stored = stored.reshape(1, 1) if single else stored.reshape(-1, 1) if stored.dim() == 1 else stored
    if not single and list(stored.shape) != [rows, groups]:
        raise ValueError(f"{name} is {list(stored.shape)} for a weight {[n, k]}, not {[rows, groups]}")
    scales = stored.repeat_interleave(format.block[0], 0)[:n] if format.block else stored.expand(n, groups)
    zeros = None
    if "weight_zero_point" in parts:
        given = parts["weight_zero_point"]
        if given.numel() not in (1, n * groups) or given.dtype != torch.int8:
            shown = f"{_said(given.dtype)} {list(given.shape)}"
            raise ValueError(f"weight_zero_point is {shown}, not int8 {[n, groups]}")
        given = given.to(torch.int16).reshape((1, 1) if given.numel() == 1 else (n, groups))
        zeros = given.expand(n, groups)
    return NarrowWeight(code, codes, scales.contiguous(), zeros, size)


MX_BLOCK = 32
"""Numbers that share a scale in OCP's Microscaling Formats 1.0."""


def mxfp4(parts: Parts, _: Format) -> NarrowWeight:
    """Reads gpt-oss's experts: `blocks` `[experts, n, k / 32, 16]` of two e2m1 a byte, `scales` of e8m0."""
    blocks = _part(parts, "blocks", torch.uint8, 4)
    scales = _shaped(parts, "scales", tuple(blocks.shape[:3]), torch.uint8)
    if blocks.shape[3] != MX_BLOCK // 2:
        raise ValueError(f"blocks have {blocks.shape[3]} bytes, not {MX_BLOCK // 2}")
    return NarrowWeight("fp4", blocks.flatten(2), _powers_of_two(scales), None, MX_BLOCK)


def _powers_of_two(scales: Tensor) -> Tensor:
    """Scales as numbers, of which e8m0 stores the exponents with 127 added."""
    if scales.dtype == torch.float8_e8m0fnu:
        scales = scales.view(torch.uint8)
    if scales.dtype == torch.uint8:
        return torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.to(torch.int32) - 127)
    return scales


def _scales(parts: Parts, name: str, shape: tuple[int, ...]) -> Tensor:
    return _floating(name, _shaped(parts, name, shape))


def _floating(name: str, scales: Tensor) -> Tensor:
    if not scales.is_floating_point():
        raise ValueError(f"{name} is stored as {_said(scales.dtype)}, not as floating-point numbers")
    return scales


def _signed(words: Tensor, bits: int) -> tuple[Tensor, Code]:
    """Words `[n, k / per word]`, whose lowest bits come first, as codes and what these are."""
    stored = words.view(torch.uint8)
    return (stored, "int4") if bits == 4 else ((stored ^ 128).view(torch.int8), "int8")


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """`[.., m]` int32 as `[.., m * 32 / bits]`, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)


_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in its word of each of eight columns."""


def _interleaved(words: Tensor) -> Tensor:
    places = torch.tensor(_AWQ_PLACES, device=words.device)
    return _unpacked(words, 4).view(len(words), -1, 8).index_select(-1, places).flatten(-2)


def _groups(k: int, format: Format) -> tuple[int, int]:
    """The size and number of groups of `k` columns."""
    size = format.group_size or k
    return size, -(-k // size)


def _column_groups(parts: Parts, name: str, k: int, size: int, groups: int, format: Format) -> Tensor | None:
    if name not in parts:
        if format.act_order:
            raise ValueError(f"{name} is missing, which act order needs")
        return None
    index = _shaped(parts, name, (k,)).long()
    if index.is_meta:
        return index if format.act_order else None
    if not ((index >= 0) & (index < groups)).all():
        raise ValueError(f"{name} names a group that is none of its {groups}")
    is_in_order = bool((index == torch.arange(k, device=index.device) // size).all())
    return None if is_in_order else index


def _part(parts: Parts, name: str, dtype: torch.dtype, dimensions: int) -> Tensor:
    tensor = parts[name]
    if tensor.dtype != dtype or tensor.dim() != dimensions:
        shown = f"{_said(tensor.dtype)} {list(tensor.shape)}"
        raise ValueError(f"{name} is {shown}, not {_said(dtype)} of {dimensions} dimensions")
    return tensor


def _shaped(parts: Parts, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """The part of that name. Raises ValueError if it is missing, or of another shape or dtype."""
    if name not in parts:
        raise ValueError(f"{name} is missing")
    tensor = parts[name]
    if tuple(tensor.shape) != shape or (dtype is not None and tensor.dtype != dtype):
        wanted = list(shape) if dtype is None else f"{_said(dtype)} {list(shape)}"
        raise ValueError(f"{name} is {_said(tensor.dtype)} {list(tensor.shape)}, not {wanted}")
    return tensor


def _said(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
