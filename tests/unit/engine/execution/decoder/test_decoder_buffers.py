"""Memory of a written-out decoder's activations: kept, grown, and laid out for the cache."""

import pytest
import torch

from nightshift_engine.execution.decoder.buffers import CACHE_WAY_BYTES, Buffers


def test_a_buffer_stays_where_it_is_until_a_larger_step_comes() -> None:
    buffers = Buffers()
    first = buffers.get("x", 8, 4, torch.float32)
    assert buffers.get("x", 3, 4, torch.float32).data_ptr() == first.data_ptr()
    assert buffers.num_moves == 1
    assert buffers.get("x", 9, 4, torch.float32).shape == (9, 4)
    assert buffers.num_moves == 2


def test_layers_of_different_widths_do_not_share_a_buffer() -> None:
    buffers = Buffers()
    assert buffers.get("inner", 3, 24, torch.float32).shape == (3, 24)
    assert buffers.get("inner", 3, 48, torch.float32).shape == (3, 48)
    assert buffers.get("inner", 3, 24, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ways", [1, 2, 4])
def test_rows_of_activations_do_not_lie_whole_cache_ways_apart(dtype: torch.dtype, ways: int) -> None:
    columns = ways * CACHE_WAY_BYTES // dtype.itemsize
    spaced = Buffers().get("x", 5, columns, dtype, is_spaced=True)
    assert spaced.shape == (5, columns)
    assert spaced.stride(0) * dtype.itemsize % CACHE_WAY_BYTES != 0
    assert Buffers().get("x", 5, columns, dtype).is_contiguous()
    assert Buffers().get("x", 5, 768, dtype, is_spaced=True).is_contiguous()
