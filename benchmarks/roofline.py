"""The least time of a workload on a machine, and so the highest tokens per second of any engine.

Steps and prompts take what `limits.py` says; a shared prefix is computed once. Batches are simulated request
by request: the mean batch of a workload with a tail is far below the number of slots. Sampling, Python and
everything else cost nothing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.limits import Limits, layers_flops
from benchmarks.machine import Machine
from benchmarks.models import Shape
from benchmarks.workloads import Workload

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Limit:
    """A lower bound of time for a workload, and the batch it was simulated with."""

    num_steps: int
    mean_batch: float
    prefill_seconds: float
    decode_seconds: float
    num_output_tokens: int

    @property
    def output_tokens_per_second(self) -> float:
        return self.num_output_tokens / (self.prefill_seconds + self.decode_seconds)


def limit(workload: Workload, shape: Shape, machine: Machine, dtype: str, max_num_seqs: int) -> Limit:
    """The bound by memory and arithmetic: no engine of this dtype can be faster on this machine."""
    limits = Limits(machine.read_bytes_per_second, machine.best_flops(dtype))
    prefill = prefill_flops(workload, shape) / limits.flops_per_second
    step_seconds = partial(limits.decode_seconds, shape, BYTES[dtype])
    return _simulate(workload, max_num_seqs, step_seconds, prefill)


def practical_limit(
    workload: Workload, shape: Shape, machine: Machine, dtype: str, max_num_seqs: int, kind: str
) -> Limit:
    """The same with the linears as slow as they were measured, KV still read at full speed.

    What an engine on this `kind` of GEMM (machine.GEMM_KINDS) reaches if all the rest were free. The measured
    stack must be of the workload's model.
    """
    measured = machine.linears_seconds[dtype][kind]
    prefill_rows = max(measured)
    prefill_flops_per_second = 2 * shape.num_linear_parameters * prefill_rows / measured[prefill_rows]

    def step_seconds(batch: int, context_tokens: int) -> float:
        kv_bytes = context_tokens * shape.kv_elements_per_token * BYTES[dtype]
        return interpolated(measured, batch) + kv_bytes / machine.read_bytes_per_second

    prefill = prefill_flops(workload, shape) / prefill_flops_per_second
    return _simulate(workload, max_num_seqs, step_seconds, prefill)


def prefill_flops(workload: Workload, shape: Shape) -> float:
    """Operations for all prompts, the shared prefix once and every request's own part on top of it."""
    shared = workload.num_shared_prefix_tokens
    spans = [(0, shared)] if shared else []
    spans += [(shared, len(request.prompt_token_ids)) for request in workload.requests]
    layers = sum(layers_flops(shape, start, end) for start, end in spans)
    return layers + 2.0 * shape.num_head_parameters * len(workload.requests)


def interpolated(seconds_by_rows: Mapping[int, float], rows: int) -> float:
    """Linear between the measured row counts, proportional beyond the last."""
    counts = sorted(seconds_by_rows)
    if rows >= counts[-1]:
        return seconds_by_rows[counts[-1]] * rows / counts[-1]
    if rows <= counts[0]:
        return seconds_by_rows[counts[0]]
    above = next(count for count in counts if count >= rows)
    below = counts[counts.index(above) - 1]
    share = (rows - below) / (above - below)
    return seconds_by_rows[below] * (1 - share) + seconds_by_rows[above] * share


def _simulate(
    workload: Workload, max_num_seqs: int, step_seconds: Callable[[int, int], float], prefill_seconds: float
) -> Limit:
    """Decode with every free slot refilled at once. A prompt's forward pass yields the first token."""
    waiting = deque((len(r.prompt_token_ids), r.num_output_tokens - 1) for r in workload.requests)
    running: list[tuple[int, int]] = []  # context length, tokens still to come
    num_steps, seconds, tokens = 0, 0.0, 0
    while waiting or running:
        while waiting and len(running) < max_num_seqs:
            context, left = waiting.popleft()
            if left:
                running.append((context, left))
        if not running:
            break
        num_steps += 1
        tokens += len(running)
        seconds += step_seconds(len(running), sum(context for context, _ in running))
        running = [(context + 1, left - 1) for context, left in running if left > 1]
    return Limit(
        num_steps=num_steps,
        mean_batch=tokens / num_steps if num_steps else 0.0,
        prefill_seconds=prefill_seconds,
        decode_seconds=seconds,
        num_output_tokens=workload.num_output_tokens,
    )
