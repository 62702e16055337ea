"""The Triton kernels against the plain reference, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.unit.engine.kernels.triton.attention_problems import (
    ERROR_MAX,
    MIXED,
    PROBLEMS,
    Inputs,
    Problem,
    attend_reference,
    random_inputs,
    write_reference,
)
from tests.unit.engine.kernels.triton.kernel_checks import attend_chunks, attend_decodes, check_kernels
from tests.unit.engine.tiny.cases import mostly_exhaustive

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the kernels on the device")

from nightshift_engine.kernels.triton.kv_write import write_kv  # noqa: E402
from nightshift_engine.kernels.triton.launch import PagedKv  # noqa: E402
from nightshift_engine.kernels.triton.splits import SPLITS_MAX, split_tokens  # noqa: E402

CPU = torch.device("cpu")
DEFAULT = (
    *("multi-query, odd group", "dim 96, values of 64", "window, softcap and sinks", "float16"),
    "int8 KV, bfloat16",
)
"""Between them, every option in a dtype; the interpreter is slow."""
WITH_SEVERAL_KV_HEADS = ("plain", "multi-head", "sinks", "int8 KV")


def problem_of(name: str) -> Problem:
    """The interpreter runs every program of a kernel in Python: one KV head where the number is not what is
    tested; tests/gpu has them all on a device.
    """
    problem = PROBLEMS[name]
    if name in WITH_SEVERAL_KV_HEADS:
        return problem
    return replace(problem, heads=problem.heads // problem.kv_heads, kv_heads=1)


def paged(inputs: Inputs) -> PagedKv:
    return PagedKv(inputs.keys, inputs.values, inputs.key_scales, inputs.value_scales)


@pytest.mark.parametrize("name", mostly_exhaustive(PROBLEMS, default=DEFAULT))
def test_kernels_give_the_reference(name: str) -> None:
    if PROBLEMS[name].kv_dtype == torch.float8_e4m3fn:
        pytest.skip("the interpreter rounds what it writes as no device does")
    for check in check_kernels(CPU, [name], {name: problem_of(name)}):
        assert check.holds, check


@pytest.mark.parametrize(("name", "split_size"), [("fp8 KV, bfloat16", 32), ("window", 16), ("sinks", 512)])
def test_chunks_and_decoding_give_the_reference_whatever_the_splits(name: str, split_size: int) -> None:
    inputs = write_reference(random_inputs(problem_of(name), 3, CPU))
    wanted, newest = attend_reference(inputs), inputs.cu_seqlens_q[1:].long() - 1
    limits = {"atol": ERROR_MAX[inputs.problem.dtype], "rtol": 0}

    torch.testing.assert_close(attend_chunks(inputs).double(), wanted, **limits)
    torch.testing.assert_close(attend_decodes(inputs, split_size).double(), wanted[newest], **limits)


@pytest.mark.parametrize(
    "name", mostly_exhaustive(["plain", "window, softcap and sinks"], default=["window, softcap and sinks"])
)
def test_a_decoded_row_is_bitwise_the_same_alone_and_beside_others(name: str) -> None:
    inputs = write_reference(random_inputs(problem_of(name), 4, CPU))
    together = attend_decodes(inputs, split_size=16)

    assert torch.equal(attend_decodes(inputs, split_size=16, programs_wanted=1), together)
    for row, sequence in enumerate(inputs.problem.sequences):
        alone = replace(
            inputs,
            problem=replace(inputs.problem, sequences=(sequence,)),
            cu_seqlens_q=torch.tensor([inputs.cu_seqlens_q[row], inputs.cu_seqlens_q[row + 1]]),
            seqused_k=inputs.seqused_k[row : row + 1],
            block_table=inputs.block_table[row : row + 1],
        )
        assert torch.equal(attend_decodes(alone, split_size=16)[0], together[row])


def test_rows_before_the_first_sequence_and_behind_the_last_are_left_alone() -> None:
    inputs = write_reference(random_inputs(PROBLEMS["plain"], 5, CPU))
    q = torch.cat([inputs.q[:1].expand(40, -1, -1), inputs.q, inputs.q[:3]])

    out = attend_chunks(replace(inputs, q=q, cu_seqlens_q=inputs.cu_seqlens_q + 40))

    assert torch.equal(out[40:-3], attend_chunks(inputs))
    assert out[:40].isnan().all()
    assert out[-3:].isnan().all()


def test_sequences_that_are_not_there_follow_chunks_and_change_nothing() -> None:
    inputs = write_reference(random_inputs(problem_of("sinks"), 5, CPU))
    none = torch.zeros(3, dtype=torch.int32)
    padded = replace(
        inputs,
        q=torch.cat([inputs.q, inputs.q[:40]]),
        cu_seqlens_q=torch.cat([inputs.cu_seqlens_q, none + inputs.cu_seqlens_q[-1]]),
        seqused_k=torch.cat([inputs.seqused_k, none]),
        block_table=torch.cat([inputs.block_table, inputs.block_table[:3]]),
    )

    out = attend_chunks(padded)

    assert torch.equal(out[:-40], attend_chunks(inputs))
    assert out[-40:].isnan().all()


@pytest.mark.parametrize("name", ["window", "sinks"])
def test_a_sequence_that_is_not_there_decodes_to_zeros(name: str) -> None:
    inputs = write_reference(random_inputs(problem_of(name), 5, CPU))
    wanted = attend_decodes(inputs)
    wanted[2] = 0.0
    seqused_k = inputs.seqused_k.clone()
    seqused_k[2] = 0

    assert torch.equal(attend_decodes(replace(inputs, seqused_k=seqused_k)), wanted)


def test_fp8_is_written_with_the_scale_that_uses_its_whole_range() -> None:
    inputs = random_inputs(PROBLEMS["fp8 KV, bfloat16"], 6, CPU)
    # Numbers that fp8 has, and its largest in each row: the interpreter rounds others wrongly (127.9 to 64).
    exact = (inputs.key.float() * 20).to(torch.float8_e4m3fn).to(torch.bfloat16)
    exact[..., 0] = torch.finfo(torch.float8_e4m3fn).max
    inputs = replace(inputs, key=exact * 4, value=exact / 2)
    wanted = write_reference(inputs)

    write_kv(inputs.key, inputs.value, paged(inputs), inputs.slots)

    torch.testing.assert_close(inputs.keys.float(), wanted.keys.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(inputs.value_scales, wanted.value_scales, rtol=0, atol=0, equal_nan=True)
    assert inputs.key_scales is not None
    assert inputs.key_scales.nan_to_num().unique().tolist()[-1] == 4.0


def test_a_negative_slot_is_not_written() -> None:
    inputs = random_inputs(Problem(MIXED), 7, CPU)
    before = inputs.keys.clone()

    write_kv(inputs.key, inputs.value, paged(inputs), torch.full_like(inputs.slots, -1))

    torch.testing.assert_close(inputs.keys, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("context", "size"), [(1, 256), (16_384, 256), (16_385, 512), (131_072, 2048)])
def test_splits_grow_with_the_context_so_that_their_number_stays_bounded(context: int, size: int) -> None:
    assert split_tokens(context) == size
    assert -(-context // size) <= SPLITS_MAX
