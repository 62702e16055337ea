"""Random problems of paged attention, and their answers in float64, written down plainly and slowly.

The tests hold the Triton kernels to them in Triton's interpreter, `tests/gpu` on a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nightshift_engine.execution.kv_memory import QUANTISED_DTYPES, as_indexable


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes of a random problem. Each sequence is (new tokens, tokens in KV memory with them)."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 64
    value_dim: int | None = None  # as key_dim
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None  # as dtype; int8 and fp8 get scales

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.key_dim)


MIXED = ((1, 33), (37, 37), (5, 70), (1, 1), (2, 64))
"""Decoding, a whole prompt, chunks that look back, a first token; lengths around the edges of blocks."""

PROBLEMS = {
    "plain": Problem(MIXED),
    "multi-head": Problem(MIXED, heads=4, kv_heads=4),
    "multi-query, odd group": Problem(MIXED, heads=7, kv_heads=1, key_dim=16),
    "blocks of 12": Problem(MIXED, block_size=12),
    "blocks of 1": Problem(MIXED, block_size=1, key_dim=16),
    "blocks of 256": Problem(MIXED, block_size=256, key_dim=16),
    "dim 80": Problem(MIXED, key_dim=80),
    "dim 96, values of 64": Problem(MIXED, key_dim=96, value_dim=64, block_size=5),
    "dim 256": Problem(MIXED, key_dim=256, heads=2, kv_heads=1),
    "window": Problem(MIXED, window=11),
    "window of 1": Problem(MIXED, window=1, key_dim=16),
    "softcap": Problem(MIXED, softcap=5.0),
    "sinks": Problem(MIXED, has_sinks=True),
    "window, softcap and sinks": Problem(MIXED, window=20, softcap=20.0, has_sinks=True),
    "bfloat16": Problem(MIXED, dtype=torch.bfloat16),
    "float16": Problem(MIXED, dtype=torch.float16, window=20, key_dim=128),
    "int8 KV": Problem(MIXED, kv_dtype=torch.int8),
    "int8 KV, bfloat16": Problem(MIXED, kv_dtype=torch.int8, dtype=torch.bfloat16, block_size=12),
    "fp8 KV, bfloat16": Problem(MIXED, kv_dtype=torch.float8_e4m3fn, dtype=torch.bfloat16),
}

ERROR_MAX = {torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Largest error of outputs of order one, against float64. Half precision rounds weights and result."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """One random problem, on one device. Slots of KV memory that no sequence has written hold NaN."""

    problem: Problem
    q: Tensor  # [tokens, heads, key_dim]
    key: Tensor  # [tokens, kv_heads, key_dim]: of the new tokens, not yet in memory
    value: Tensor  # [tokens, kv_heads, value_dim]
    keys: Tensor  # [blocks, kv_heads, block_size, key_dim]
    values: Tensor  # [blocks, kv_heads, block_size, value_dim]
    key_scales: Tensor | None  # [blocks, kv_heads, block_size]
    value_scales: Tensor | None
    sinks: Tensor | None  # [heads]
    cu_seqlens_q: Tensor  # [sequences + 1], int32
    seqused_k: Tensor  # [sequences], int32
    block_table: Tensor  # [sequences, blocks], int32
    slots: Tensor  # [tokens], int64: where the new tokens go


def random_inputs(problem: Problem, seed: int, device: torch.device) -> Inputs:
    """Sequences over scattered blocks, with everything but their new tokens in KV memory."""
    generator = torch.Generator().manual_seed(seed)
    value_dim = problem.value_dim or problem.key_dim
    size = problem.block_size
    counts = [-(-length // size) for _, length in problem.sequences]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    table = torch.zeros(len(counts), max(counts) + 1, dtype=torch.int32)
    slots, known = [], torch.zeros(num_blocks, size, dtype=torch.bool)
    for row, ((num_new, length), count) in enumerate(zip(problem.sequences, counts, strict=True)):
        blocks = [order.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(blocks)
        where = torch.tensor([blocks[t // size] * size + t % size for t in range(length)])
        known.view(-1)[where[: length - num_new]] = True
        slots.append(where[length - num_new :])
    num_tokens = sum(num_new for num_new, _ in problem.sequences)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(problem.dtype)

    def memory(dim: int) -> tuple[Tensor, Tensor | None]:
        numbers = random(num_blocks, problem.kv_heads, size, dim)
        numbers = numbers.masked_fill(~known[:, None, :, None], float("nan"))
        if problem.kv_dtype not in QUANTISED_DTYPES:
            return numbers.to(problem.kv_dtype or problem.dtype), None
        stored, scales = quantise(numbers, problem.kv_dtype)
        return stored, scales.masked_fill(~known[:, None], float("nan"))

    keys, key_scales = memory(problem.key_dim)
    values, value_scales = memory(value_dim)
    starts = torch.tensor([0] + [num_new for num_new, _ in problem.sequences]).cumsum(0)

    def to(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device)

    return Inputs(
        problem=problem,
        q=random(num_tokens, problem.heads, problem.key_dim).to(device),
        key=random(num_tokens, problem.kv_heads, problem.key_dim).to(device),
        value=random(num_tokens, problem.kv_heads, value_dim).to(device),
        keys=keys.to(device),
        values=values.to(device),
        key_scales=to(key_scales),
        value_scales=to(value_scales),
        sinks=to(torch.randn(problem.heads, generator=generator) if problem.has_sinks else None),
        cu_seqlens_q=starts.to(torch.int32).to(device),
        seqused_k=torch.tensor([length for _, length in problem.sequences], dtype=torch.int32).to(device),
        block_table=table.to(device),
        slots=torch.cat(slots).to(device),
    )


def quantise(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Elements of `dtype`, and a float32 scale per row: the largest of a row becomes the dtype's largest."""
    numbers = numbers.float()
    limits = torch.iinfo(dtype) if dtype == torch.int8 else torch.finfo(dtype)
    scales = numbers.abs().amax(-1) / limits.max
    rows = numbers / torch.where(scales == 0, 1.0, scales)[..., None]
    if dtype == torch.int8:
        rows = torch.floor(rows.nan_to_num() + 0.5)
    return rows.to(dtype), scales


def write_reference(inputs: Inputs) -> Inputs:
    """The same problem with the new tokens' keys and values in (copies of) its memory."""
    memories: dict[str, Any] = {}
    for name, new in (("key", inputs.key), ("value", inputs.value)):
        memory: Tensor = getattr(inputs, f"{name}s").clone()
        scales: Tensor | None = getattr(inputs, f"{name}_scales")
        blocks, offsets = inputs.slots // memory.shape[2], inputs.slots % memory.shape[2]
        if scales is None:
            memory[blocks, :, offsets] = new.to(memory.dtype)
        else:
            stored, row_scales = quantise(new, memory.dtype)
            as_indexable(memory)[blocks, :, offsets] = as_indexable(stored)
            scales = scales.clone()
            scales[blocks, :, offsets] = row_scales
        memories |= {f"{name}s": memory, f"{name}_scales": scales}
    return replace(inputs, **memories)


def attend_reference(inputs: Inputs) -> Tensor:
    """Each new token's attention over its sequence in memory: `[tokens, heads, value_dim]`, float64."""
    problem, out = inputs.problem, []
    for row, (num_new, length) in enumerate(problem.sequences):
        start = int(inputs.cu_seqlens_q[row])
        q = inputs.q[start : start + num_new].double()
        keys = _gather(inputs.keys, inputs.key_scales, inputs.block_table[row], length)
        values = _gather(inputs.values, inputs.value_scales, inputs.block_table[row], length)
        group = problem.heads // problem.kv_heads
        keys, values = (memory.repeat_interleave(group, dim=0) for memory in (keys, values))
        scores = torch.einsum("qhd,hkd->hqk", q, keys) * problem.scale
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        positions = torch.arange(length - num_new, length, device=q.device)[:, None]
        tokens = torch.arange(length, device=q.device)[None]
        hidden = tokens > positions
        if problem.window is not None:
            hidden |= tokens <= positions - problem.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if inputs.sinks is not None:
            sinks = inputs.sinks.double()[:, None, None].expand(-1, num_new, 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :length]
        out.append(torch.einsum("hqk,hkd->qhd", weights, values))
    return torch.cat(out)


def _gather(memory: Tensor, scales: Tensor | None, table: Tensor, length: int) -> Tensor:
    """One sequence's keys or values `[kv_heads, tokens, dim]`, float64."""
    blocks = table[: -(-length // memory.shape[2])].long()
    numbers = as_indexable(memory)[blocks].view(memory.dtype).to(torch.float64)
    if scales is not None:
        numbers = numbers * scales[blocks].double()[..., None]
    return numbers.transpose(0, 1).flatten(1, 2)[:, :length]
