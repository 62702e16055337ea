"""Paged attention against attention written out in float64, over the shapes that models come in."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers.engine.execution.attention import LayerCall
from workers.engine.execution.attention_backends import make_attention
from workers.engine.execution.kv_memory import KvMemory, KvShape
from workers.engine.execution.step_layout import StepLayout
from workers.engine.execution.torch_attention import PADDING_RATIO_MAX, similar_lengths

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


def paged(cases: list[Case], kv: KvMemory, call: LayerCall) -> list[Tensor]:
    """The same through one packed step, after the earlier tokens have been stored."""
    layer = kv.layers[0]
    for case in cases:
        for position in range(case.num_before):
            block, offset = case.table[position // BLOCK_SIZE], position % BLOCK_SIZE
            layer.keys[block, :, offset] = case.key[:, position]
            layer.values[block, :, offset] = case.value[:, position]
    lengths = [case.query.shape[1] - case.num_before for case in cases]
    step = make_attention("torch", kv).step(layout_of(cases))
    query, key, value = (
        torch.cat([getattr(case, name)[:, case.num_before :] for case in cases], 1)
        for name in ("query", "key", "value")
    )
    out = step.attend(0, query, key, value, call)
    return list(out.split(lengths))


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


def make_cases(lengths: list[tuple[int, int]], num_heads: int, shape: KvShape, seed: int) -> list[Case]:
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
                [blocks.pop() for _ in range(-(-total // BLOCK_SIZE))],
            )
        )
    return cases


@pytest.mark.parametrize("window", [None, 1, 3, 4, 6, 100])
@pytest.mark.parametrize("special", ["plain", "softcap", "sinks", "both"])
@pytest.mark.parametrize(
    ("num_heads", "shape"),
    [(4, KvShape(4, 8, 8)), (6, KvShape(2, 10, 10)), (5, KvShape(1, 3, 7))],
    ids=["each its own", "groups of three", "one for all, odd dims"],
)
def test_a_mixed_step_equals_attention_written_out(
    window: int | None, special: str, num_heads: int, shape: KvShape
) -> None:
    sinks = torch.randn(num_heads, generator=torch.Generator().manual_seed(1))
    call = LayerCall(
        scale=0.3,
        window=window,
        softcap=2.0 if special in ("softcap", "both") else None,
        sinks=sinks if special in ("sinks", "both") else None,
    )
    lengths = [(visible - 1, 1) for visible in DECODE_LENGTHS] + PREFILL_LENGTHS
    cases = make_cases(lengths, num_heads, shape, seed=2)
    memory = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    kv = KvMemory({0: shape}, **memory, dtype=torch.float32, device=torch.device("cpu"))

    for case, got in zip(cases, paged(cases, kv, call), strict=True):
        torch.testing.assert_close(got.double(), written_out(case, call), atol=2e-6, rtol=1e-5)


@given(counts=st.lists(st.integers(1, 200), max_size=80).map(sorted))
def test_decode_groups_cover_everyone_once_and_pad_little(counts: list[int]) -> None:
    runs = similar_lengths(counts)

    assert sorted(index for run in runs for index in range(run.start, run.stop)) == list(range(len(counts)))
    for run in runs:
        longest = counts[run.stop - 1]
        for count in counts[run]:
            assert longest - count <= longest * PADDING_RATIO_MAX + 1
