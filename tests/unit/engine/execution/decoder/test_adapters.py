"""The kernels that add adapters to the products of packed layers, and the memory that they read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nightshift_engine.core.config import EngineConfig
from nightshift_engine.execution.decoder.adapters.memory import LowRank, PlaceMemory
from nightshift_engine.execution.decoder.adapters.native import add_adapters
from nightshift_engine.execution.decoder.adapters.rows import TILE_ROWS, AdapterRows, group_rows, one_tile
from nightshift_engine.execution.decoder.adapters.targets import Target
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.loading.adapters import load_adapters
from tests.unit.engine.execution.decoder.test_decoder import Whole, inputs, load
from tests.unit.engine.tiny.adapters import merged, save_adapter
from tests.unit.engine.tiny.decoders import save_model

CPU = torch.device("cpu")
needs_native = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)
Add = Callable[[Tensor, PlaceMemory, AdapterRows, Tensor, float], None]


def native(x: Tensor, memory: PlaceMemory, rows: AdapterRows, out: Tensor, factor: float) -> None:
    add_adapters(x, memory, rows, torch.empty(len(rows.rows), memory.a.shape[1]), out, factor)


def interpreted(x: Tensor, memory: PlaceMemory, rows: AdapterRows, out: Tensor, factor: float) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is not in use")
    from nightshift_engine.kernels.triton import lora

    assert lora.TILE_ROWS == TILE_ROWS
    lora.add_adapters(
        x, memory.a, memory.b, memory.part_ends, memory.ranks, rows.rows, rows.tiles, out, factor
    )


ADDS = [pytest.param(native, marks=needs_native), interpreted]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def targets_of(widths: list[int], inputs: int, order: Tensor | None = None) -> list[Target]:
    firsts = np.cumsum([0, *widths[:-1]]).tolist()
    return [
        Target(0, "qkv", part, first, inputs, width, order)
        for part, (first, width) in enumerate(zip(firsts, widths, strict=True))
    ]


def rows_of(slots: list[int], counts: list[int]) -> AdapterRows:
    rows = group_rows(slots, np.array(counts, dtype=np.int64))
    assert rows is not None
    return rows.on(CPU)


@pytest.mark.parametrize("add", ADDS)
@pytest.mark.parametrize(
    ("widths", "inputs", "rank", "slots", "counts", "dtype"),
    [
        ([32], 32, 8, [0, 1, -1, 0], [1, 1, 1, 1], torch.float32),
        ([40, 20, 20], 33, 8, [1, -1, 0, 2], [1, 1, 1, 40], torch.float32),
        ([7, 5], 70, 16, [2, 2, 2, 0, 0], [1, 1, 3, 17, 1], torch.float32),
        ([600, 300], 64, 24, [0, 1, 2, -1, 0], [1, 5, 1, 9, 2], torch.bfloat16),
    ],
)
def test_the_rows_of_each_adapter_get_what_it_makes_of_them(
    add: Any,
    widths: list[int],
    inputs: int,
    rank: int,
    slots: list[int],
    counts: list[int],
    dtype: torch.dtype,
) -> None:
    """Slots with a smaller rank, with one part of several, and with nothing for this layer."""
    memory = PlaceMemory(targets_of(widths, inputs), 3, rank, dtype, CPU)
    adapters = {
        0: {
            part: LowRank(drawn(rank, inputs, seed=part), drawn(n, rank, seed=9))
            for part, n in enumerate(widths)
        },
        1: {len(widths) - 1: LowRank(drawn(3, inputs, seed=5), drawn(widths[-1], 3, seed=6))},
        2: {},
    }
    for slot, by_part in adapters.items():
        memory.put(slot, by_part)
    num_rows, total = sum(counts), sum(widths)
    x = drawn(num_rows, inputs + 2, seed=2, dtype=dtype)[:, :inputs]  # rows lie apart
    out = drawn(num_rows, total + 5, seed=3)[:, :total]
    wanted = out.double()
    for row, slot in enumerate(np.repeat(slots, counts).tolist()):
        for part, low_rank in adapters.get(slot, {}).items():
            a, b = low_rank.a.to(dtype).double(), low_rank.b.to(dtype).double()
            first = sum(widths[:part])
            wanted[row, first : first + widths[part]] += 0.5 * (x[row].double() @ a.T) @ b.T

    add(x, memory, rows_of(slots, counts), out, 0.5)

    assert (out - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("add", ADDS)
def test_rows_without_an_adapter_keep_their_bits(add: Any) -> None:
    memory = PlaceMemory(targets_of([48], 32), 1, 8, torch.bfloat16, CPU)
    memory.put(0, {0: LowRank(drawn(8, 32), drawn(48, 8))})
    before = drawn(5, 48, dtype=torch.bfloat16)
    out = before.clone()

    add(drawn(5, 32, seed=4, dtype=torch.bfloat16), memory, rows_of([-1, 0, -1, 0], [1, 1, 2, 1]), out, 1.0)

    assert torch.equal(out[[0, 2, 3]], before[[0, 2, 3]])
    assert not torch.equal(out[1], before[1])


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_tile(dtype: torch.dtype) -> None:
    memory = PlaceMemory(targets_of([130, 66], 200), 2, 16, dtype, CPU)
    for slot in range(2):
        memory.put(
            slot, {part: LowRank(drawn(12, 200, seed=slot), drawn(n, 12)) for part, n in enumerate([130, 66])}
        )
    x = drawn(60, 200, seed=7, dtype=dtype)
    alone, together = torch.zeros(1, 196), torch.zeros(60, 196)
    native(x, memory, rows_of([0, 1, 0], [33, 20, 7]), together, 1.0)

    for row, slot in ((0, 0), (15, 0), (32, 0), (33, 1), (52, 1), (59, 0)):
        native(x[row : row + 1], memory, rows_of([slot], [1]), alone.zero_(), 1.0)
        assert torch.equal(alone[0], together[row])


def test_outputs_of_one_layer_lie_in_its_packed_order() -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    memory = PlaceMemory(targets_of([12], 6, order), 1, 8, torch.float32, CPU)
    low_rank = LowRank(drawn(2, 6), drawn(12, 2))
    memory.put(0, {0: low_rank})
    [block] = memory.b[0]
    assert torch.equal(block[:2, :12].T, low_rank.b[order])


def test_what_a_slot_had_before_is_gone() -> None:
    memory = PlaceMemory(targets_of([8, 8], 6), 1, 8, torch.float32, CPU)
    memory.put(0, {0: LowRank(drawn(5, 6), drawn(8, 5)), 1: LowRank(drawn(5, 6), drawn(8, 5))})
    memory.put(0, {1: LowRank(drawn(2, 6), drawn(8, 2))})
    assert not memory.b[0, 0].any()
    assert not memory.a[0, :8].any()
    assert not memory.b[0, 1, 2:].any()
    memory.put(0, {})
    assert not memory.is_changed


def test_rows_are_grouped_by_slot_in_tiles() -> None:
    rows = group_rows([3, -1, 0, 3], np.array([1, 1, 20, 1]))
    assert rows is not None
    assert rows.rows.tolist() == [*range(2, 22), 0, 22]
    assert rows.tiles.tolist() == [[0, 0, TILE_ROWS], [0, TILE_ROWS, 20 - TILE_ROWS], [3, 20, 2]]
    assert group_rows([-1, -1], np.array([1, 5])) is None


@torch.inference_mode()
def test_a_decoder_on_cuda_s_kernels_computes_the_merged_model_for_the_adapter_s_rows(tmp_path: Path) -> None:
    """It runs under Triton's interpreter; `running/test_adapters.py` has the CPU's kernels."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is not in use")
    from tests.unit.engine.execution.decoder.test_triton_operations import read

    base = save_model(tmp_path / "base", "phi3")  # one layer for all heads, one for gate and up
    adapter = save_adapter(tmp_path / "sum", base)
    decoder = read(load(base))
    config = EngineConfig(str(base), adapters=(adapter,))
    adapters = load_adapters(config, decoder, "auto", torch.float32, CPU)
    assert adapters is not None
    adapters.put(0, "sum")
    token_ids, rows = torch.arange(20), list(range(20))
    wanted = load(merged(base, adapter, 6 / 4, tmp_path / "merged"))(token_ids[None]).logits[0]

    got = decoder(replace(inputs(token_ids, rows), adapted=one_tile(16).on(CPU)), Whole())
    plain = decoder(inputs(token_ids, rows), Whole())

    assert (got[:16] - wanted[:16]).abs().max() < 1e-4 * wanted.abs().max()
    assert (plain - wanted).abs().max() > 0.1 * wanted.abs().max()
