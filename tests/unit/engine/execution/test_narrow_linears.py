"""Linear layers over narrow weights: the numbers of the dequantised layer, on a CPU bit for bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine.checkpoint.narrow.weight import NarrowWeight, pack_halves, round_weight
from nightshift_engine.execution.device.native_calls import WrittenCalls
from nightshift_engine.execution.linears.narrow_native import NarrowNativeLinear, can_pack_narrow
from nightshift_engine.execution.linears.native import NativeLinear
from tests.unit.engine.tiny.cases import pairwise

CODES = ("int4", "int4 with zeros", "int8", "int8 in groups", "fp8", "fp8 in groups")
SHAPES = [(1, 32), (31, 64), (100, 192), (70, 1024)]
WAYS = [
    (dtype, unit)
    for dtype, unit in (("float32", "vectors"), ("bfloat16", "vectors"), ("bfloat16", "tiles"))
    if NativeLinear.can_pack(dtype, 64, unit)  # type: ignore[arg-type]
]

needs_native = pytest.mark.skipif(not WAYS, reason="no compiler, so no native kernels")


def narrow(kind: str, n: int, k: int, seed: int = 0) -> NarrowWeight:
    """Random codes, all of which occur, and scales far apart."""
    generator = torch.Generator().manual_seed(seed)
    size = 32 if "group" in kind or "int4" in kind else k
    scales = torch.rand(n, k // size, generator=generator) * 2 + 0.1
    if kind.startswith("int4"):
        codes = pack_halves(torch.randint(0, 16, (n, k), generator=generator).to(torch.uint8))
        zeros = torch.randint(-8, 9, scales.shape, generator=generator).to(torch.int16)
        return NarrowWeight("int4", codes, scales.half(), zeros if "zeros" in kind else None, size)
    codes = torch.randint(0, 256, (n, k), generator=generator).to(torch.uint8)
    if kind.startswith("int8"):
        return NarrowWeight("int8", codes.view(torch.int8), scales, None, size)
    codes[(codes & 127) == 127] = 0  # not a number
    return NarrowWeight("fp8", codes.view(torch.float8_e4m3fn), scales, None, size)


def stored(linear: Any, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    out = torch.full((len(x), linear.out_features), float("nan"), dtype=dtype)
    linear.store(x, out)
    return out


def rows_of(count: int, k: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, k, generator=torch.Generator().manual_seed(9)).to(dtype)


@needs_native
@pytest.mark.parametrize(("way", "kind", "shape", "rows"), pairwise(WAYS, CODES, SHAPES, [1, 2, 15, 33, 300]))
def test_a_layer_gives_the_bits_of_the_dequantised_one(way: Any, kind: str, shape: Any, rows: int) -> None:
    dtype, unit = way
    weight, bias = narrow(kind, *shape), torch.linspace(-1, 1, shape[0])
    x = rows_of(rows, shape[1], getattr(torch, dtype))
    assert can_pack_narrow(weight, dtype, unit)
    whole = weight.dequantized(getattr(torch, dtype))

    got = stored(NarrowNativeLinear(dtype, weight, bias, unit=unit), x)

    assert torch.equal(got, stored(NativeLinear(dtype, whole, bias, unit=unit), x))


@needs_native
@pytest.mark.parametrize("option", [{"gate": "silu"}, {"activation": "gelu"}])
def test_what_follows_the_product_is_the_same(option: dict[str, Any]) -> None:
    weight = narrow("int4 with zeros", 68, 96)
    x = rows_of(5, 96, torch.float32)
    whole = NativeLinear("float32", weight.dequantized(torch.float32), None, **option)
    assert torch.equal(stored(NarrowNativeLinear("float32", weight, None, **option), x), stored(whole, x))


@needs_native
def test_products_are_added_with_a_factor() -> None:
    weight, x = narrow("fp8", 40, 64), rows_of(3, 64, torch.float32)
    out, wanted = torch.ones(3, 40), torch.ones(3, 40)
    NarrowNativeLinear("float32", weight, None).add_to(x, out, 0.5)
    NativeLinear("float32", weight.dequantized(torch.float32), None).add_to(x, wanted, 0.5)
    assert torch.equal(out, wanted)


@needs_native
def test_a_panel_without_memory_is_an_error_and_not_the_end_of_the_process() -> None:
    linear, written = NarrowNativeLinear("float32", narrow("int8", 96, 64), None), WrittenCalls()
    x, out = torch.zeros(2, 64), torch.ones(2, 96)
    linear._call.k = (
        1 << 50
    )  # a panel of more bytes than can be addressed; before it is there, nothing is read
    with written.writing():
        linear.store(x, out)

    with pytest.raises(MemoryError):
        written.run()
    with pytest.raises(MemoryError):
        linear.store(x, out)

    linear._call.k = 64
    linear.store(x, out)
    assert (out == 0).all(), "the memory that is gone is used no more"


@needs_native
def test_a_weight_whose_groups_do_not_lie_together_has_no_kernel() -> None:
    weight = narrow("int4", 32, 64)
    shuffled = NarrowWeight(weight.code, weight.codes, weight.scales, None, 32, groups=torch.arange(64) % 2)
    assert can_pack_narrow(weight, "float32")
    assert not can_pack_narrow(shuffled, "float32")


@pytest.fixture(scope="module")
def cuda() -> Any:
    """The layers for CUDA, whose kernel runs in Triton's interpreter."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has these on the device")
    from nightshift_engine.execution.linears import narrow_cuda

    return narrow_cuda


@pytest.mark.parametrize(
    ("kind", "shape", "rows", "dtype"),
    pairwise(CODES, [(16, 32), (70, 96), (130, 192)], [1, 17, 70], [torch.float32, torch.bfloat16]),
)
def test_the_triton_kernel_multiplies_by_the_dequantised_weight(
    kind: str, shape: Any, rows: int, dtype: torch.dtype, cuda: Any
) -> None:
    weight, bias = narrow(kind, *shape), torch.linspace(-1, 1, shape[0])
    x = rows_of(rows, shape[1], dtype)

    got = stored(cuda.TritonNarrowLinear(weight, bias), x)

    wanted = x.double() @ weight.dequantized(dtype).double().T + bias.double()
    # The interpreter cuts numbers off where a device rounds them to bfloat16; tests/gpu is exact.
    error_max = 2e-6 if dtype == torch.float32 else 1e-2
    assert (got - wanted).abs().max() <= error_max * wanted.abs().max()


def test_the_triton_kernel_takes_inputs_that_fill_no_product(cuda: Any) -> None:
    for kind, k in (("int8", 40), ("fp8", 24), ("int4", 96)):
        weight, x = narrow(kind, 20, k), rows_of(3, k, torch.float32)
        wanted = x @ weight.dequantized(torch.float32).T
        torch.testing.assert_close(stored(cuda.TritonNarrowLinear(weight), x), wanted, rtol=1e-5, atol=1e-4)


def test_on_cuda_a_gate_and_a_sum_follow(cuda: Any) -> None:
    weight, x = narrow("int4 with zeros", 64, 64), rows_of(4, 64, torch.float32) / 100
    product = x @ weight.dequantized(torch.float32).T
    gate, up = product.chunk(2, 1)
    wanted = torch.nn.functional.silu(gate) * up
    got = stored(cuda.TritonNarrowLinear(weight, gate="silu"), x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)
    out = torch.ones(4, 64)
    cuda.TritonNarrowLinear(weight).add_to(x, out, 0.5)
    torch.testing.assert_close(out, 1 + 0.5 * product, rtol=1e-4, atol=1e-3)


def test_fp8_rounds_inputs_by_row_and_multiplies_exactly(cuda: Any) -> None:
    weight = round_weight(torch.randn(32, 48, generator=torch.Generator().manual_seed(2)), "fp8")
    assert weight is not None
    x = rows_of(5, 48, torch.bfloat16)

    got = stored(cuda.Fp8Linear(weight, torch.ones(32), product=cuda.exact_product), x)

    scale = x.float().abs().amax(1, keepdim=True) / 448
    rounded = (x.float() / scale).to(torch.float8_e4m3fn).float() * scale
    wanted = rounded @ weight.dequantized(torch.float32).T + 1
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=0.1)


def test_fp8_in_blocks_rounds_inputs_by_block(cuda: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    codes = torch.randn(256, 384, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=generator).repeat_interleave(128, 0)
    weight = NarrowWeight("fp8", codes, scales, None, 128, rounds_inputs=True)
    assert cuda.is_scaled(weight)
    x = rows_of(3, 384, torch.float32)
    x[:, :128] *= 1000  # would drown the others in one scale

    got = stored(cuda.Fp8Linear(weight, product=cuda.exact_product), x)

    wanted = x @ weight.dequantized(torch.float32).T
    assert ((got - wanted).norm() / wanted.norm()).item() < 0.05
    small = x.clone()
    small[:, :128] = 0
    wanted = small @ weight.dequantized(torch.float32).T
    got = stored(cuda.Fp8Linear(weight, product=cuda.exact_product), small)
    assert ((got - wanted).norm() / wanted.norm()).item() < 0.05


@pytest.mark.parametrize(
    ("shape", "changes", "is_scaled"),
    [
        ((32, 48), {}, True),
        ((30, 48), {}, False),
        ((32, 40), {}, False),
        ((32, 48), {"rounds_inputs": False}, False),
    ],
)
def test_a_scaled_product_is_for_whole_multiples_and_inputs_that_may_be_rounded(
    shape: Any, changes: dict[str, Any], is_scaled: bool, cuda: Any
) -> None:
    weight = round_weight(torch.randn(*shape), "fp8")
    assert weight is not None
    assert cuda.is_scaled(replace(weight, **changes)) == is_scaled


def test_a_scaled_product_that_is_wrong_or_not_there_is_not_used(cuda: Any) -> None:
    weight = round_weight(torch.randn(32, 48, generator=torch.Generator().manual_seed(2)), "fp8")
    assert weight is not None

    def missing(*_: Tensor) -> Tensor:
        raise RuntimeError("no such recipe")

    assert cuda.computes_scaled(weight, cuda.exact_product)
    assert not cuda.computes_scaled(weight, lambda x, xs, w, ws: cuda.exact_product(x, 2 * xs, w, ws))
    assert not cuda.computes_scaled(weight, missing)
