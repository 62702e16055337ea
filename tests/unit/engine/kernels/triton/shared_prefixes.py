"""Problems of decoding in which neighbouring sequences have their first blocks in common."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tests.unit.engine.kernels.triton.attention_problems import (
    Inputs,
    Problem,
    random_inputs,
    write_reference,
)

LENGTHS = (40, 66, 70, 65, 97, 64, 65, 61, 49, 33, 34, 35, 36, 37, 38, 39, 20)
"""Around the edges of splits of 32 tokens; no whole number of tiles of any size."""
PREFIXES = ((1, 5, 64), (5, 9, 48), (0, 16, 32))
"""First and last sequence, and the tokens that those between them have in common."""


def shared_problem(problem: Problem, device: torch.device) -> tuple[Inputs, Tensor]:
    """Every sequence of `LENGTHS` decodes; and what each shares with the one before, int32 `[sequences]`."""
    problem = replace(problem, sequences=tuple((1, length) for length in LENGTHS))
    inputs = random_inputs(problem, 8, device)
    table, size = inputs.block_table, problem.block_size
    shared = torch.zeros(len(LENGTHS), dtype=torch.int32)
    for start, stop, tokens in PREFIXES:
        owner = max(range(start, stop), key=lambda row: LENGTHS[row])
        blocks = tokens // size
        table[start:stop, :blocks] = table[owner, :blocks].clone()
        shared[start + 1 : stop] = shared[start + 1 : stop].clamp(min=blocks * size)
    return write_reference(inputs), shared.to(device)
