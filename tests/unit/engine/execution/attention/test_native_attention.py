"""The native kernel: right for every head shape, and the same bits however a step is put together."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from nightshift_engine.execution.attention.interface import LayerCall
from nightshift_engine.execution.attention.native_backend import NativeAttention, native_attention_computes
from nightshift_engine.execution.kv_memory import KvMemory, KvShape
from tests.unit.engine.execution.attention.test_attention import (
    NUM_BLOCKS,
    Case,
    layout_of,
    make_cases,
    memory,
    paged,
    written_out,
)
from tests.unit.engine.tiny.cases import mostly_exhaustive

BLOCK = 32
LENGTHS = [(0, 1), (31, 1), (32, 1), (33, 1), (100, 1), (0, 2), (0, 33), (31, 34), (64, 3), (90, 40)]
"""Tokens in memory and new ones, around the edges of blocks and of the kernel's tiles."""
PLAIN = LayerCall(scale=0.125, window=None, softcap=None, sinks=None)
SPLIT_KEYS = 1024
"""Keys one thread takes of a long sequence (`SPLIT` of the kernel)."""


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("dim", "num_heads", "kv_heads"),
    [
        *((dim, 6, 2) for dim in (16, 64, 80, 96, 128, 256)),
        *((64, *heads) for heads in ((2, 2), (14, 2), (9, 1), (64, 1))),
        (256, 14, 2),
        (80, 9, 1),
        (16, 64, 1),
    ],
)
def test_head_shapes(dim: int, num_heads: int, kv_heads: int) -> None:
    """Every width with groups of three, every number of heads with 64 wide, and the extremes together."""
    check(LENGTHS, num_heads, KvShape(kv_heads, dim, dim))


@pytest.mark.parametrize(("key_dim", "value_dim"), [(192, 128), (576, 512), (24, 40), (5, 96)])
def test_keys_and_values_of_different_width(key_dim: int, value_dim: int) -> None:
    call = replace(PLAIN, scale=key_dim**-0.5)
    check(LENGTHS, 4, KvShape(1, key_dim, value_dim), call=call)


@pytest.mark.parametrize("block_size", [1, 7, 16, 48, 64])
def test_blocks_of_any_size(block_size: int) -> None:
    check([(0, 1), (13, 1), (5, 20)], 4, KvShape(2, 16, 16), block_size=block_size)


@pytest.mark.parametrize("window", mostly_exhaustive([None, 700, 1500], default=[700]))
@pytest.mark.usefixtures("threads")
def test_long_sequences_are_split_and_merged(window: int | None) -> None:
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(1))
    call = LayerCall(scale=0.25, window=window, softcap=None, sinks=sinks)
    lengths = [(SPLIT_KEYS, 1), (2 * SPLIT_KEYS + 70, 1), (SPLIT_KEYS - 20, 50)]
    check(lengths, 4, KvShape(2, 16, 16), block_size=128, call=call)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_and_out(dtype: torch.dtype) -> None:
    """Sums are made in float32, so only the output is rounded, and in bfloat16 the weights of the values."""
    if not native_attention_computes(dtype, dtype):
        pytest.skip(f"this processor has no kernel for {dtype}")
    shape = KvShape(2, 64, 64)
    cases = [rounded(case, dtype) for case in make_cases(LENGTHS, 6, shape, seed=4, block_size=BLOCK)]

    got = paged(cases, memory("native", shape, BLOCK, dtype), PLAIN, "native")

    atol = 4e-3 if dtype == torch.bfloat16 else 1e-3
    for case, rows in zip(cases, got, strict=True):
        assert rows.dtype == dtype
        torch.testing.assert_close(rows, written_out(case, PLAIN).to(dtype), atol=atol, rtol=2**-7)


def test_large_scores_do_not_overflow() -> None:
    cases = make_cases([(40, 1), (0, 40)], 2, KvShape(2, 16, 16), seed=5)
    cases = [
        Case(case.query * 200, case.key * 200, case.value, case.num_before, case.table) for case in cases
    ]

    got = paged(cases, memory("native", KvShape(2, 16, 16), BLOCK), PLAIN, "native")

    for case, rows in zip(cases, got, strict=True):
        assert rows.isfinite().all()
        torch.testing.assert_close(rows.double(), written_out(case, PLAIN), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("block_size", [4, BLOCK])
def test_what_lies_behind_the_last_token_is_not_read(dtype: torch.dtype, block_size: int) -> None:
    shape = KvShape(2, 16, 24)
    cases = make_cases([(8, 1), (0, 1), (33, 1), (0, 35), (15, 5)], 4, shape, seed=6)
    clean, poisoned = memory("native", shape, block_size, dtype), memory("native", shape, block_size, dtype)
    for tensor in poisoned.layers[0].tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 127)

    expected = paged(cases, clean, PLAIN, "native")

    assert_same_bits(paged(cases, poisoned, PLAIN, "native"), expected)


def test_a_value_that_is_not_a_number_reaches_its_own_sequence_only() -> None:
    shape = KvShape(2, 16, 16)
    cases = make_cases([(33, 1), (20, 1), (3, 6)], 4, shape, seed=7)
    cases[1].key[:, 5] = float("nan")

    got = paged(cases, memory("native", shape, BLOCK), PLAIN, "native")

    assert [bool(rows.isfinite().all()) for rows in got] == [True, False, True]


@pytest.mark.usefixtures("threads")
def test_tensors_need_not_be_contiguous() -> None:
    """The rows of one fused projection, as the decoder has them: `[tokens, heads of all three, dim]`."""
    shape = KvShape(2, 16, 16)
    [case] = make_cases([(0, 70)], 6, shape, seed=8, block_size=BLOCK)
    [expected] = paged([case], memory("native", shape, BLOCK), PLAIN, "native")
    fused = torch.cat([case.query, case.key, case.value]).transpose(0, 1).contiguous()
    query, key, value = (part.transpose(0, 1) for part in fused.split([6, 2, 2], dim=1))

    step = NativeAttention(memory("native", shape, BLOCK)).step(layout_of([case], BLOCK))

    assert_same_bits([step.attend(0, query, key, value, PLAIN)], [expected])


@dataclass
class Schedule:
    """One way for a set of sequences to come through the engine."""

    kv: KvMemory
    tables: list[list[int]]
    steps: list[list[tuple[int, int]]]  # per step: sequence and how many tokens it gets


def random_schedule(
    rng: random.Random, num_tokens: list[int], shape: KvShape, block_size: int, dtype: torch.dtype
) -> Schedule:
    """Chunks of random length, of a random set of sequences per step, over shuffled and poisoned blocks."""
    blocks = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    tables = [[blocks.pop() for _ in range(-(-count // block_size))] for count in num_tokens]
    left, steps = dict(enumerate(num_tokens)), []
    while left:
        chosen = rng.sample(sorted(left), rng.randint(1, len(left)))
        steps.append([(one, rng.choice([1, rng.randint(1, left[one]), left[one]])) for one in chosen])
        steps[-1].sort(key=lambda given: given[1] > 1)
        for one, count in steps[-1]:
            left[one] -= count
            if not left[one]:
                del left[one]
    kv = memory("native", shape, block_size, dtype)
    for tensor in kv.layers[0].tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() else -128)
    return Schedule(kv, tables, steps)


def follow(schedule: Schedule, cases: list[Case], call: LayerCall) -> list[Tensor]:
    """Every token's output under `schedule`, per sequence."""
    attention, done = NativeAttention(schedule.kv), [0] * len(cases)
    rows: list[list[Tensor]] = [[] for _ in cases]
    for step in schedule.steps:
        parts = []
        for one, count in step:
            until = done[one] + count
            query, key, value = (getattr(cases[one], name)[:, :until] for name in ("query", "key", "value"))
            parts.append(Case(query, key, value, done[one], schedule.tables[one]))
            done[one] = until
        new = [
            torch.cat([getattr(part, name)[:, part.num_before :] for part in parts], 1)
            for name in ("query", "key", "value")
        ]
        out = attention.step(layout_of(parts, schedule.kv.block_size)).attend(0, *new, call)
        for (one, _), piece in zip(step, out.split([count for _, count in step]), strict=True):
            rows[one].append(piece)
    return [torch.cat(pieces) for pieces in rows]


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(
    ("num_heads", "shape", "window", "special"),
    [
        (12, KvShape(4, 64, 64), None, False),
        (2, KvShape(2, 80, 80), 40, False),
        (7, KvShape(1, 24, 12), None, True),
        (16, KvShape(1, 128, 128), 70, True),
    ],
    ids=["groups", "own heads, window", "one KV head, softcap and sinks", "everything"],
)
def test_random_schedules_give_the_same_bits(
    kv_dtype: torch.dtype, num_heads: int, shape: KvShape, window: int | None, special: bool
) -> None:
    """Chunking, other sequences, blocks, block size and threads change no bit of any token."""
    sinks = torch.randn(num_heads, generator=torch.Generator().manual_seed(1)) if special else None
    call = LayerCall(scale=0.2, window=window, softcap=20.0 if special else None, sinks=sinks)
    num_tokens = [1, 5, 33, 70, 150, 96]
    seed = random.randrange(2**32)
    cases = make_cases([(0, count) for count in num_tokens], num_heads, shape, seed, block_size=BLOCK)
    rng, expected = random.Random(seed), None
    threads_before = torch.get_num_threads()
    for _ in range(8):
        torch.set_num_threads(rng.choice([1, 2]))
        schedule = random_schedule(rng, num_tokens, shape, rng.choice([16, 32, 64]), kv_dtype)
        got = follow(schedule, cases, call)
        expected = got if expected is None else expected
        assert_same_bits(got, expected)
    torch.set_num_threads(threads_before)


def test_long_sequences_have_the_same_bits_whole_and_token_by_token() -> None:
    num_tokens, shape = 2 * SPLIT_KEYS + 40, KvShape(1, 16, 16)
    [case] = make_cases([(0, num_tokens)], 2, shape, seed=11, block_size=128)
    threads_before = torch.get_num_threads()
    results = []
    for threads, first in ((1, num_tokens), (2, SPLIT_KEYS - 3), (1, 2 * SPLIT_KEYS - 3)):
        torch.set_num_threads(threads)
        counts = [first, *[1] * 6, num_tokens - first - 6] if first < num_tokens else [first]
        schedule = Schedule(memory("native", shape, 128), [case.table], [[(0, count)] for count in counts])
        results.append(follow(schedule, [case], PLAIN))
    torch.set_num_threads(threads_before)

    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


def check(
    lengths: list[tuple[int, int]],
    num_heads: int,
    shape: KvShape,
    *,
    block_size: int = BLOCK,
    call: LayerCall = PLAIN,
) -> None:
    """A step of sequences of these lengths equals attention written out."""
    cases = make_cases(lengths, num_heads, shape, seed=9, block_size=block_size)

    got = paged(cases, memory("native", shape, block_size), call, "native")

    for case, rows in zip(cases, got, strict=True):
        torch.testing.assert_close(rows.double(), written_out(case, call), atol=5e-6, rtol=1e-5)


def rounded(case: Case, dtype: torch.dtype) -> Case:
    tensors = (tensor.to(dtype) for tensor in (case.query, case.key, case.value))
    return Case(*tensors, case.num_before, case.table)


def assert_same_bits(got: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
