"""Attention over whole inputs by our kernel: what torch computes, whatever lies beside an input."""

import pytest
import torch
import torch.nn.functional as F

from nightshift_engine.execution.attention.input_attention import InputAttention

pytestmark = pytest.mark.skipif(not InputAttention.is_available(), reason="no compiler for the kernel")

LENGTHS = [[1], [2, 3], [8, 17, 33], [64, 65], [129, 1, 128], [257, 300]]
"""Lengths within a tile of keys, at its edges and beyond it; more queries than one run has."""


def starts(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def rows_of(count, heads, head_dim, dtype):
    """Query, key and value beside one another, in rows that lie apart."""
    torch.manual_seed(count)
    return torch.randn(count, 3 * heads * head_dim + 5, dtype=dtype)[:, : 3 * heads * head_dim]


def attend(qkv, lengths, head_dim):
    query, key, value = qkv.chunk(3, dim=1)
    out = torch.full(query.shape, torch.nan, dtype=qkv.dtype)
    ends = starts(lengths)
    InputAttention()(query, key, value, out, query_starts=ends, key_starts=ends, head_dim=head_dim)
    return out


def exact(query, key, value, head_dim):
    heads = (rows.double().unflatten(1, (-1, head_dim)).transpose(0, 1) for rows in (query, key, value))
    return F.scaled_dot_product_attention(*heads).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    ("heads", "head_dim"), [(12, 32), (3, 64), (2, 80), (3, 72), (2, 8), (2, 20), (1, 128)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_every_input_gets_what_it_would_get_alone(lengths, heads, head_dim, dtype, tolerance):
    qkv = rows_of(sum(lengths), heads, head_dim, dtype)
    attended = attend(qkv, lengths, head_dim)
    for own, out in zip(qkv.split(lengths), attended.split(lengths), strict=True):
        expected = exact(*own.chunk(3, dim=1), head_dim)
        assert (out.double() - expected).abs().max() <= tolerance * expected.abs().max()
        assert torch.equal(out, attend(own, [len(own)], head_dim)), "other inputs change its bits"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype):
    qkv = rows_of(330, 4, 32, dtype)
    threads = torch.get_num_threads()
    try:
        outputs = []
        for count in (1, 2):
            torch.set_num_threads(count)
            outputs.append(attend(qkv, [300, 30], 32))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_a_number_stays_in_its_input(dtype):
    lengths = [5, 70, 3]
    qkv = rows_of(sum(lengths), 2, 32, dtype)
    expected = attend(qkv, lengths, 32)
    qkv[5:75] = torch.nan
    attended = attend(qkv, lengths, 32)
    assert attended[5:75].isnan().all()
    assert torch.equal(attended[:5], expected[:5])
    assert torch.equal(attended[75:], expected[75:])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 2e-2)])
def test_very_different_scores_overflow_nowhere(dtype, tolerance):
    qkv = rows_of(200, 1, 32, dtype) * 100
    attended, expected = attend(qkv, [200], 32), exact(*qkv.chunk(3, dim=1), 32)
    assert (attended.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_may_be_fewer_than_keys(dtype):
    lengths = [7, 130]
    qkv = rows_of(sum(lengths), 3, 32, dtype)
    query, key, value = qkv.chunk(3, dim=1)
    first = query[starts(lengths)[:-1]]
    out = torch.empty(first.shape, dtype=dtype)
    InputAttention()(
        first, key, value, out, query_starts=torch.arange(3), key_starts=starts(lengths), head_dim=32
    )
    for own_query, own_key, own_value, own in zip(
        first, key.split(lengths), value.split(lengths), out, strict=True
    ):
        expected = exact(own_query[None], own_key, own_value, 32)[0]
        assert (own.double() - expected).abs().max() <= (2e-6 if dtype == torch.float32 else 2e-2) * 4
