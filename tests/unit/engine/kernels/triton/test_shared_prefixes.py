"""A prefix that sequences share is read once for several of them, and their results stay the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.unit.engine.kernels.triton.attention_problems import ERROR_MAX, Problem, attend_reference
from tests.unit.engine.kernels.triton.kernel_checks import attend_decodes
from tests.unit.engine.kernels.triton.shared_prefixes import LENGTHS, shared_problem
from tests.unit.engine.tiny.cases import mostly_exhaustive

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the kernels on the device")

CPU = torch.device("cpu")
PROBLEMS = {
    "groups of 1": Problem((), heads=1, kv_heads=1, key_dim=16),
    "groups of 2, two KV heads": Problem((), heads=4, kv_heads=2, key_dim=16),
    "groups of 4": Problem((), heads=4, kv_heads=1, key_dim=16),
    "groups of 7": Problem((), heads=7, kv_heads=1, key_dim=16),
    "groups of 8, softcap and sinks": Problem(
        (), heads=8, kv_heads=1, key_dim=16, softcap=5.0, has_sinks=True
    ),
    "groups of 9, too many to share": Problem((), heads=9, kv_heads=1, key_dim=16),
    "window": Problem((), heads=2, kv_heads=1, key_dim=16, window=50),
    "int8": Problem((), heads=2, kv_heads=1, key_dim=16, kv_dtype=torch.int8, dtype=torch.bfloat16),
    "fp8": Problem((), heads=2, kv_heads=1, key_dim=16, kv_dtype=torch.float8_e4m3fn, dtype=torch.bfloat16),
    "blocks of 12, float16": Problem((), heads=2, kv_heads=1, key_dim=16, block_size=12, dtype=torch.float16),
}
DEFAULT = ("groups of 2, two KV heads", "groups of 7", "groups of 8, softcap and sinks", "window", "fp8")


@pytest.mark.parametrize("name", mostly_exhaustive(PROBLEMS, default=DEFAULT))
def test_rows_are_bitwise_those_of_programs_that_share_nothing(name: str) -> None:
    inputs, shared = shared_problem(PROBLEMS[name], CPU)
    alone = attend_decodes(inputs)

    torch.testing.assert_close(
        alone.double(), attend_reference(inputs), atol=ERROR_MAX[inputs.problem.dtype], rtol=0
    )
    assert torch.equal(attend_decodes(inputs, shared_tokens=shared), alone)


def test_tiles_of_a_step_spread_over_many_programs_give_the_same() -> None:
    inputs, shared = shared_problem(PROBLEMS["groups of 8, softcap and sinks"], CPU)
    alone = attend_decodes(inputs)

    assert torch.equal(attend_decodes(inputs, shared_tokens=shared, programs_wanted=1), alone)
    assert torch.equal(attend_decodes(inputs, shared_tokens=torch.zeros_like(shared)), alone)


def test_a_shared_split_is_read_through_the_first_sequence_of_a_tile_alone() -> None:
    """The tables of the others name a block of NaN there: who read it would show it."""
    inputs, shared = shared_problem(PROBLEMS["groups of 8, softcap and sinks"], CPU)
    wanted, tile_size, split, size = attend_decodes(inputs), 2, 32, inputs.problem.block_size
    unknown = next(block for block in range(len(inputs.keys)) if inputs.keys[block].isnan().all())
    table, num_unread = inputs.block_table.clone(), 0
    for row in range(1, len(LENGTHS) // tile_size * tile_size, tile_size):
        blocks = int(shared[row]) // split * split // size
        table[row, :blocks] = unknown
        num_unread += blocks

    got = attend_decodes(replace(inputs, block_table=table), split, shared_tokens=shared)

    assert torch.equal(got, wanted)
    assert num_unread == 2 + 4 + 2 + 2 + 2 + 2 + 2 + 2  # of 8 tiles, one has two splits in common


def test_a_sequence_that_is_not_there_shares_nothing() -> None:
    inputs, shared = shared_problem(PROBLEMS["groups of 4"], CPU)
    wanted = attend_decodes(inputs, shared_tokens=shared)
    rows = torch.cat([torch.zeros(3, dtype=torch.int64), torch.arange(len(LENGTHS))])
    padded = replace(
        inputs,
        problem=replace(inputs.problem, sequences=((1, 1),) * 3 + inputs.problem.sequences),
        q=inputs.q[rows],
        cu_seqlens_q=torch.arange(len(rows) + 1),
        seqused_k=torch.where(torch.arange(len(rows)) < 3, 1, inputs.seqused_k[rows]).int(),
        block_table=inputs.block_table[rows],
    )

    got = attend_decodes(padded, shared_tokens=torch.cat([torch.zeros(3, dtype=torch.int32), shared]))

    assert torch.equal(got[3:], wanted)
