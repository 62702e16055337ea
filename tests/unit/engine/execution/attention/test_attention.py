"""Paged attention against attention written out in float64, over the shapes that models come in."""

import random
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nightshift_engine.execution.attention.interface import LayerCall
from nightshift_engine.execution.attention.native_backend import native_attention_computes
from nightshift_engine.execution.attention.selection import has_transposed_keys, make_attention
from nightshift_engine.execution.attention.torch_backend import PADDING_RATIO_MAX, similar_lengths
from nightshift_engine.execution.kv_memory import KvMemory, KvShape
from nightshift_engine.execution.step_layout import StepLayout
from tests.unit.engine.tiny.cases import pairwise

BLOCK_SIZE = 4
NUM_BLOCKS = 40
PREFILL_LENGTHS = [(0, 9), (3, 6), (8, 8), (7, 2), (15, 5)]
"""Tokens already in memory and new ones: fresh, across a block edge, on one, mid-block, far in."""
DECODE_LENGTHS = [1, 4, 5, 8, 17, 23]
"""Tokens visible to sequences with one new token: the very first, and both sides of block edges."""


@dataclass
class Case:
    """One sequence: everything it knows, and the table under which the earlier part is stored."""

    query: Tensor  # [heads, tokens, key_dim]
    key: Tensor  # [kv_heads, tokens, key_dim]
    value: Tensor
    num_before: int
    table: list[int]


def written_out(case: Case, call: LayerCall) -> Tensor:
    """`[new tokens, heads, value_dim]` by the definition, one float64 matrix per head."""
    query, key, value = case.query.double(), case.key.double(), case.value.double()
    group = query.shape[0] // key.shape[0]
    scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    positions = torch.arange(query.shape[1])
    distance = positions[:, None] - positions[None]
    hidden = (distance < 0) | (distance >= (call.window or 10**9))
    scores = scores.masked_fill(hidden, float("-inf"))
    if call.sinks is not None:
        sink = call.sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., : key.shape[1]]
    return (weights @ value.repeat_interleave(group, 0)).transpose(0, 1)[case.num_before :]


def memory(backend: str, shape: KvShape, block_size: int, dtype: torch.dtype = torch.float32) -> KvMemory:
    """One layer's memory as `backend` wants it."""
    return KvMemory(
        {0: shape},
        num_blocks=NUM_BLOCKS,
        block_size=block_size,
        dtype=dtype,
        device=torch.device("cpu"),
        transposed_keys=has_transposed_keys(backend),
    )


def paged(cases: list[Case], kv: KvMemory, call: LayerCall, backend: str) -> list[Tensor]:
    """The same through two packed steps: what each sequence has before, then what is new."""
    before = [replace(case, num_before=0, **first_tokens(case)) for case in cases if case.num_before]
    before.sort(key=lambda case: case.query.shape[1] > 1)
    attention = make_attention(backend, kv)
    for step in (before, cases):
        if not step:
            continue
        lengths = [case.query.shape[1] - case.num_before for case in step]
        query, key, value = (
            torch.cat([getattr(case, name)[:, case.num_before :] for case in step], 1)
            for name in ("query", "key", "value")
        )
        out = attention.step(layout_of(step, kv.block_size)).attend(0, query, key, value, call)
    return list(out.split(lengths))


def first_tokens(case: Case) -> dict[str, Tensor]:
    return {name: getattr(case, name)[:, : case.num_before] for name in ("query", "key", "value")}


def layout_of(cases: list[Case], block_size: int = BLOCK_SIZE) -> StepLayout:
    seq_lens = [case.query.shape[1] for case in cases]
    counts = [case.query.shape[1] - case.num_before for case in cases]
    assert counts == sorted(counts, key=lambda count: count > 1), "decodes go first"
    width = max(len(case.table) for case in cases)
    positions = [range(case.num_before, case.query.shape[1]) for case in cases]
    slots = [
        case.table[position // block_size] * block_size + position % block_size
        for case, new in zip(cases, positions, strict=True)
        for position in new
    ]
    return StepLayout(
        cu_seqlens_q=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.tensor(
            [case.table + [0] * (width - len(case.table)) for case in cases], dtype=torch.int32
        ),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor([position for new in positions for position in new]),
        num_tokens=sum(counts),
        num_decodes=counts.count(1),
        max_query_len=max(counts),
        max_seq_len=max(seq_lens),
    )


def make_cases(
    lengths: list[tuple[int, int]],
    num_heads: int,
    shape: KvShape,
    seed: int,
    block_size: int = BLOCK_SIZE,
) -> list[Case]:
    print(f"{seed=}")
    generator, blocks = torch.Generator().manual_seed(seed), list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(blocks)
    cases = []
    for num_before, num_new in lengths:
        total = num_before + num_new
        cases.append(
            Case(
                torch.randn(num_heads, total, shape.key_dim, generator=generator),
                torch.randn(shape.num_heads, total, shape.key_dim, generator=generator),
                torch.randn(shape.num_heads, total, shape.value_dim, generator=generator),
                num_before,
                [blocks.pop() for _ in range(-(-total // block_size))],
            )
        )
    return cases


BACKENDS = ("torch", "native")
BLOCK_SIZES = (BLOCK_SIZE, 32)
WINDOWS = (None, 1, 3, 4, 6, 100)
SPECIALS = ("plain", "softcap", "sinks", "both")
SHAPES = {
    "each its own": (4, KvShape(4, 8, 8)),
    "groups of three": (6, KvShape(2, 10, 10)),
    "one for all, odd dims": (5, KvShape(1, 3, 7)),
}
CORNERS = [
    (backend, block_size, window, "both", shape)
    for backend in BACKENDS
    for block_size, window, shape in [
        (BLOCK_SIZE, BLOCK_SIZE, "groups of three"),  # the window is a block
        (BLOCK_SIZE, 1, "one for all, odd dims"),  # a token sees itself alone, and a sink
        (32, 6, "groups of three"),
    ]
]


@pytest.mark.parametrize(
    ("backend", "block_size", "window", "special", "shape_name"),
    dict.fromkeys([*CORNERS, *pairwise(BACKENDS, BLOCK_SIZES, WINDOWS, SPECIALS, tuple(SHAPES))]),
)
def test_a_mixed_step_equals_attention_written_out(
    backend: str, block_size: int, window: int | None, special: str, shape_name: str
) -> None:
    """Every two values of back end, block size, window, specials and heads meet; so do the corner cases.

    Each case is a step of decoding rows and prompt chunks whose lengths lie around block edges.
    """
    num_heads, shape = SHAPES[shape_name]
    sinks = torch.randn(num_heads, generator=torch.Generator().manual_seed(1))
    call = LayerCall(
        scale=0.3,
        window=window,
        softcap=2.0 if special in ("softcap", "both") else None,
        sinks=sinks if special in ("sinks", "both") else None,
    )
    lengths = [(visible - 1, 1) for visible in DECODE_LENGTHS] + PREFILL_LENGTHS
    cases = make_cases(lengths, num_heads, shape, seed=2)

    got = paged(cases, memory(backend, shape, block_size), call, backend)

    for case, rows in zip(cases, got, strict=True):
        torch.testing.assert_close(rows.double(), written_out(case, call), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_narrow_kv_costs_what_its_rounding_costs(backend: str, kv_dtype: torch.dtype) -> None:
    """Each key and value is off by half a unit: of its last bit, or of 1/127 of its vector's largest."""
    if backend == "native" and not native_attention_computes(torch.float32, kv_dtype):
        pytest.skip(f"this processor has no kernel for {kv_dtype}")
    shape, call = KvShape(2, 64, 64), LayerCall(scale=0.125, window=None, softcap=None, sinks=None)
    cases = make_cases([(22, 1), (0, 1), (0, 9), (8, 8), (15, 5)], 6, shape, seed=3)
    unit = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.int8: 3.5 / 127}[kv_dtype]

    got = paged(cases, memory(backend, shape, 32, kv_dtype), call, backend)

    error = torch.cat([rows - written_out(case, call) for case, rows in zip(cases, got, strict=True)])
    assert error.abs().max() < 3 * unit
    assert error.square().mean().sqrt() < unit / 2
    assert error.abs().max() > unit / 100, "nothing was rounded"


@given(counts=st.lists(st.integers(1, 200), max_size=80).map(sorted))
def test_decode_groups_cover_every_sequence_once_and_pad_little(counts: list[int]) -> None:
    runs = similar_lengths(counts)

    assert sorted(index for run in runs for index in range(run.start, run.stop)) == list(range(len(counts)))
    for run in runs:
        longest = counts[run.stop - 1]
        for count in counts[run]:
            assert longest - count <= longest * PADDING_RATIO_MAX + 1
