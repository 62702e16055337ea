"""The random problems that the Triton kernels must solve, in the interpreter and on a device alike."""

from __future__ import annotations

import torch

from workers.engine.kernels.reference import Problem

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
"""Of outputs of order one, against float64. Half precision rounds the weights and the result."""
