"""Checks of the Triton kernels against float64, in Triton's interpreter or on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.device.checks import Check
from nightshift_engine.execution.attention.selection import FP8_CAPABILITY_MIN
from tests.unit.engine.kernels.triton.attention_problems import (
    ERROR_MAX,
    PROBLEMS,
    Inputs,
    Problem,
    attend_reference,
    random_inputs,
    write_reference,
)

SPLIT_SIZE = 32


def check_kernels(
    device: torch.device, names: list[str], problems: Mapping[str, Problem] = PROBLEMS
) -> Iterator[Check]:
    """Chunks, split decoding and KV writes in Triton against float64."""
    from nightshift_engine.kernels.triton.kv_write import write_kv

    for name in names:
        problem = problems[name]
        if problem.kv_dtype == torch.float8_e4m3fn and not _has_fp8(device):
            continue
        inputs = random_inputs(problem, 1, device)
        wanted = write_reference(inputs)
        write_kv(inputs.key, inputs.value, _paged(inputs), inputs.slots)
        written = max(
            _largest_difference(inputs.keys, wanted.keys), _largest_difference(inputs.values, wanted.values)
        )
        # A quotient may round up or down; over fp8's range, that is 32 at the top.
        steps = {torch.int8: 1.0, torch.float8_e4m3fn: 32.0}
        yield Check(f"kernel, KV write, {name}", written, steps.get(inputs.keys.dtype, 0.0))
        expected, limit = attend_reference(wanted), ERROR_MAX[problem.dtype]
        newest = wanted.cu_seqlens_q[1:].long() - 1
        yield Check(f"kernel, chunks, {name}", _error(attend_chunks(wanted), expected), limit)
        yield Check(f"kernel, decode, {name}", _error(attend_decodes(wanted), expected[newest]), limit)


def attend_chunks(inputs: Inputs) -> Tensor:
    """`[tokens, heads, value_dim]` by the chunk kernel."""
    from nightshift_engine.kernels.triton import prefill

    out = _nans(inputs, inputs.q.shape[0])
    prefill.attend_chunks(inputs.q, _paged(inputs), out, cu_seqlens_q=inputs.cu_seqlens_q, **_options(inputs))
    return out


def attend_decodes(
    inputs: Inputs,
    split_size: int = SPLIT_SIZE,
    programs_wanted: int = 1024,
    shared_tokens: Tensor | None = None,
) -> Tensor:
    """The newest token of each sequence `[sequences, heads, value_dim]` by the split kernel."""
    from nightshift_engine.kernels.triton import decode

    rows = inputs.cu_seqlens_q[1:].long() - 1
    longest = max(length for _, length in inputs.problem.sequences)
    out = _nans(inputs, len(rows))
    _, heads, value_dim = out.shape
    splits = -(-longest // split_size)
    parts = decode.SplitParts.allocate(len(rows), heads, splits, value_dim, out.device)
    decode.attend_decodes(
        inputs.q[rows],
        _paged(inputs),
        out,
        max_seqlen_k=longest,
        split_size=split_size,
        parts=parts,
        programs_wanted=programs_wanted,
        shared_tokens=shared_tokens,
        **_options(inputs),
    )
    return out


def _paged(inputs: Inputs) -> Any:
    from nightshift_engine.kernels.triton.launch import PagedKv

    return PagedKv(inputs.keys, inputs.values, inputs.key_scales, inputs.value_scales)


def _options(inputs: Inputs) -> dict[str, Any]:
    problem = inputs.problem
    return {
        "softmax_scale": problem.scale,
        "window": problem.window,
        "softcap": problem.softcap,
        "sinks": inputs.sinks,
        "seqused_k": inputs.seqused_k,
        "block_table": inputs.block_table,
    }


def _nans(inputs: Inputs, rows: int) -> Tensor:
    problem = inputs.problem
    size = (rows, problem.heads, problem.value_dim or problem.key_dim)
    return torch.full(size, float("nan"), dtype=problem.dtype, device=inputs.q.device)


def _error(got: Tensor, wanted: Tensor) -> float:
    return (got.double() - wanted).abs().max().item()


def _largest_difference(got: Tensor, wanted: Tensor) -> float:
    """Places that hold no number must be the same in both."""
    got, wanted = got.float(), wanted.float()
    if not torch.equal(got.isnan(), wanted.isnan()):
        return float("inf")
    return (got.nan_to_num() - wanted.nan_to_num()).abs().max().item()


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY_MIN
