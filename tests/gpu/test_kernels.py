"""The Triton kernels on a device, on the problems of the unit tests and on larger ones."""

from dataclasses import replace

import pytest
import torch

from tests.unit.engine.kernels.triton.attention_problems import (
    ERROR_MAX,
    PROBLEMS,
    Problem,
    attend_reference,
    random_inputs,
    write_reference,
)
from tests.unit.engine.kernels.triton.kernel_checks import attend_chunks, attend_decodes, check_kernels
from tests.unit.engine.kernels.triton.shared_prefixes import shared_problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LONG = ((1, 3000), (700, 700), (129, 2000), (1, 1), (300, 1024))


@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels_compute_what_the_reference_computes(name: str) -> None:
    for check in check_kernels(torch.device("cuda"), [name]):
        assert check.holds, check


@pytest.mark.parametrize(
    "problem",
    [
        Problem(LONG, heads=16, kv_heads=8, key_dim=128, dtype=torch.bfloat16, block_size=32),
        Problem(LONG, heads=32, kv_heads=8, key_dim=128, dtype=torch.float16, window=512),
        Problem(LONG, heads=14, kv_heads=2, key_dim=64, softcap=30.0, has_sinks=True, block_size=48),
    ],
    ids=["0.6B-shaped", "8B-shaped, window", "groups of seven, everything"],
)
def test_long_sequences_over_many_tiles_and_splits(problem: Problem) -> None:
    inputs = write_reference(random_inputs(problem, 2, torch.device("cuda")))
    wanted = attend_reference(inputs)
    newest = inputs.cu_seqlens_q[1:].long() - 1
    limits = {"atol": ERROR_MAX[problem.dtype], "rtol": 0}

    torch.testing.assert_close(attend_chunks(inputs).double(), wanted, **limits)
    torch.testing.assert_close(attend_decodes(inputs, split_size=512).double(), wanted[newest], **limits)


def test_a_decoded_row_is_bitwise_the_same_alone_and_beside_others() -> None:
    problem = Problem(LONG, heads=16, kv_heads=8, key_dim=128, dtype=torch.bfloat16)
    inputs = write_reference(random_inputs(problem, 3, torch.device("cuda")))
    together = attend_decodes(inputs, split_size=512)

    assert torch.equal(attend_decodes(inputs, split_size=512, programs_wanted=1), together)
    for row, sequence in enumerate(problem.sequences):
        alone = replace(
            inputs,
            problem=replace(problem, sequences=(sequence,)),
            cu_seqlens_q=inputs.cu_seqlens_q[row : row + 2],
            seqused_k=inputs.seqused_k[row : row + 1],
            block_table=inputs.block_table[row : row + 1],
        )
        assert torch.equal(attend_decodes(alone, split_size=512)[0], together[row])


@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
@pytest.mark.parametrize("heads", [4, 8, 28, 32])
def test_rows_that_share_a_prefix_attend_bitwise_as_those_that_share_nothing(
    heads: int, kv_dtype: torch.dtype | None
) -> None:
    problem = Problem((), heads=heads, kv_heads=4, key_dim=128, dtype=torch.bfloat16, kv_dtype=kv_dtype)
    inputs, shared = shared_problem(problem, torch.device("cuda"))

    assert torch.equal(attend_decodes(inputs, 32, shared_tokens=shared), attend_decodes(inputs, 32))
