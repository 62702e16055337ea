"""Linear layers: what they compute, in which precision, and that a row never depends on other rows."""

import random
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nightshift_engine.execution.device.native_calls import WrittenCalls
from nightshift_engine.execution.linears import packing as measuring
from nightshift_engine.execution.linears.interface import ACTIVATIONS
from nightshift_engine.execution.linears.native import NativeLinear, quantize_rows
from nightshift_engine.execution.linears.packing import OneDnnLinear, fastest_pack, native_pack, onednn_pack
from tests.unit.engine.tiny.cases import pairwise

SHAPES = [(1, 1), (31, 7), (32, 16), (33, 32), (100, 64), (256, 384), (70, 1000)]
"""(outputs, inputs): below, at and beyond a panel of 32 columns, odd numbers of inputs, long sums."""
PACKS = {"native": native_pack, "tiles": partial(native_pack, unit="tiles"), "onednn": onednn_pack}
"""Without AMX, and for layers that no tiles take, "tiles" is "native"."""
UNITS = [
    "vectors",
    pytest.param(
        "tiles",
        marks=pytest.mark.skipif(
            not NativeLinear.can_pack("bfloat16", 64, "tiles"), reason="this processor has no AMX"
        ),
    ),
]
UNIT_NAMES = ("tiles", "vectors")
"""Layers below are as wide as tiles need, so that the unit named is the one that computes them."""

needs_native = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)
needs_float32_tiles = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 32, "tiles"), reason="this processor has no AMX"
)
needs_native_bfloat16 = pytest.mark.skipif(
    not NativeLinear.can_pack("bfloat16", 2), reason="this processor has no AVX512_BF16"
)
needs_native_int8 = pytest.mark.skipif(
    not NativeLinear.can_pack("int8", 4), reason="this processor has no AVX512_VNNI"
)


@pytest.fixture
def two_threads():
    """Both sides of every comparison of threads start from two, and leave the setting as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def weights(outputs: int, inputs: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator)


def rows_of(count: int, inputs: int, *, seed: int = 1) -> Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))


def stored(linear, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    out = torch.full((len(x), linear.out_features), float("nan"), dtype=dtype)
    linear.store(x, out)
    return out


def error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference relative to the spread of what was wanted."""
    return ((got.double() - wanted).abs().max() / wanted.abs().max()).item()


@needs_native
@pytest.mark.parametrize(("way", "shape", "rows"), pairwise(tuple(PACKS), SHAPES, [1, 2, 13, 14, 15, 29, 64]))
def test_float32_equals_the_product_in_float64(way, shape, rows):
    """Every shape meets every number of rows, and both meet both kernels."""
    outputs, inputs = shape
    weight, bias = weights(outputs, inputs)
    x = rows_of(rows, inputs)
    linear = PACKS[way]("float32")(weight, bias)
    assert error(stored(linear, x), F.linear(x.double(), weight.double(), bias.double())) < 2e-6


@needs_native
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rows", [1, 13, 33, 300])
def test_float32_with_weights_that_are_bfloat16_gives_the_same_bits_and_reads_half(unit, rows, two_threads):
    """One number that is none makes the same layer read float32."""
    weight, bias = weights(100, 1024)
    weight = weight.bfloat16().float()
    unlike = torch.cat([weight, torch.full((1, 1024), 0.1)])
    halved = native_pack("float32", unit)(weight, bias)
    whole = native_pack("float32", unit)(unlike, torch.cat([bias, bias[:1]]))
    x = rows_of(rows, 1024)
    assert torch.equal(stored(halved, x), stored(whole, x)[:, :100])
    assert [halved._weight.numel() * 4, whole._weight.numel() * 4] == [128 * 1024 * 2, 128 * 1024 * 4]


@needs_native
@pytest.mark.parametrize("odd", [0.1, 1 + 2**-8, 1e-40, float(2**24 - 1)])
def test_a_single_number_of_more_bits_than_bfloat16_has_is_not_rounded(odd):
    weight = torch.zeros(5000, 2)
    weight[4999, 1] = odd
    x = torch.ones(1, 2)
    assert stored(native_pack("float32")(weight), x)[0, 4999] == torch.tensor(odd)


BANDS_AND_MORE = [(1, 1024), (33, 1024), (300, 1024), (70, 3072), (1500, 1024)]
"""(rows, inputs): a band of rows is 1 MiB, 6 bytes an input of float32 in tiles and 2 of bfloat16."""


@needs_float32_tiles
@pytest.mark.parametrize(("rows", "inputs"), BANDS_AND_MORE)
@pytest.mark.parametrize("spread", [0, 6])
def test_float32_in_tiles_errs_no_more_than_in_vectors(rows, inputs, spread, two_threads):
    """Random numbers whose magnitudes lie up to `spread` powers of ten apart."""
    weight, bias = weights(100, inputs)
    x = rows_of(rows, inputs) * 10 ** (spread * torch.rand(rows, inputs) - spread / 2)
    exact = F.linear(x.double(), weight.double(), bias.double())
    tiles, vectors = (stored(native_pack("float32", unit)(weight, bias), x) for unit in UNIT_NAMES)
    mean_square = [(product.double() - exact).square().mean() for product in (tiles, vectors)]
    assert mean_square[0] <= mean_square[1]


@needs_float32_tiles
def test_float32_in_tiles_is_exact_where_float32_is():
    """Numbers of 24 bits times powers of two, alone in their rows, lose nothing."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(2**23, 2**24, (64,), generator=generator).float() * 2.0 ** torch.arange(-90, 38, 2)
    x = torch.diag(values)
    assert torch.equal(stored(native_pack("float32", "tiles")(torch.eye(64) * 2.0**-3), x), x * 2.0**-3)
    assert torch.equal(stored(native_pack("float32", "tiles")(x), torch.eye(64) * -4.0), x * -4.0)


@needs_float32_tiles
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_in_its_row(odd):
    weight, bias = weights(40, 64)
    x = rows_of(40, 64)
    layer = native_pack("float32", "tiles")(weight, bias)
    before = stored(layer, x)
    x[17, 5] = odd
    after = stored(layer, x)
    assert not after[17].isfinite().any()
    assert torch.equal(after[torch.arange(40) != 17], before[torch.arange(40) != 17])


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("rows", "inputs"), BANDS_AND_MORE)
def test_a_row_of_many_is_bitwise_what_it_is_alone(dtype, unit, rows, inputs, two_threads):
    if not NativeLinear.can_pack(dtype, inputs, unit):
        pytest.skip(f"this processor has no kernel for {dtype} in {unit}")
    weight, bias = weights(100, inputs)
    x = rows_of(rows, inputs)
    x = x if dtype == "float32" else x.bfloat16()
    layer = native_pack(dtype, unit)(weight, bias)
    together = stored(layer, x)
    chosen = random.Random(rows).sample(range(rows), min(rows, 20))
    assert torch.equal(torch.cat([stored(layer, x[row : row + 1]) for row in chosen]), together[chosen])


@needs_native_bfloat16
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 32), (256, 384), (70, 992)])
@pytest.mark.parametrize("rows", [1, 16, 17, 32, 33, 64])
def test_bfloat16_rounds_the_inputs_and_sums_in_float32(unit, outputs, inputs, rows):
    weight, bias = (tensor.bfloat16() for tensor in weights(outputs, inputs))
    x = rows_of(rows, inputs).bfloat16()
    linear = native_pack("bfloat16", unit)(weight, bias)
    wanted = F.linear(x.double(), weight.double(), bias.double())
    assert error(stored(linear, x), wanted) < 5e-6
    rounded = stored(linear, x, torch.bfloat16)
    assert torch.equal(rounded, stored(linear, x).bfloat16()), "bfloat16 output is the float32 one, rounded"


@needs_native_int8
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_exact_on_what_it_rounded_to(dtype, unit):
    """All error is in the rounding of weights and activations: the sums are integers."""
    weight, bias = weights(100, 384)
    x = rows_of(9, 384).to(dtype)
    linear = native_pack("int8", unit)(weight, bias)
    rounded_weight, weight_scale = quantize_rows(weight)
    x_scale = x.float().abs().amax(dim=1, keepdim=True) / 127
    rounded_x = (x.float() / x_scale).round()
    exact = (rounded_x.double() @ rounded_weight.double().T) * x_scale * weight_scale + bias
    assert error(stored(linear, x), exact) < 2e-3  # a tie may be rounded to the other side
    assert error(stored(linear, x), F.linear(x.double(), weight.double(), bias.double())) < 2e-2


@needs_native_int8
def test_int8_layers_that_were_written_down_round_the_inputs_of_each_run(two_threads):
    """Also where layers use memory for rounded inputs one after the other, and rows lie apart."""
    (one, bias), (other, _) = weights(100, 384), weights(384, 384, seed=1)
    layers = [native_pack("int8")(other), native_pack("int8")(one, bias)]
    x, between, out = (
        torch.empty(9, 500).bfloat16()[:, :384],
        torch.empty(9, 384).bfloat16(),
        torch.empty(9, 100),
    )
    written = WrittenCalls()
    with written.writing():
        layers[0].store(x, between)
        layers[1].store(between, out)
    for seed in range(3):
        x.copy_(rows_of(9, 384, seed=seed))
        written.run()
        assert torch.equal(out, stored(layers[1], stored(layers[0], x, torch.bfloat16)))


@needs_native_int8
def test_a_row_of_zeros_is_quantised_without_dividing_by_zero():
    weight, _ = weights(32, 64)
    assert torch.equal(stored(native_pack("int8")(weight), torch.zeros(2, 64)), torch.zeros(2, 32))


@needs_native
@pytest.mark.parametrize("way", PACKS)
@pytest.mark.parametrize(("activation", "outputs"), pairwise([*ACTIVATIONS], [32, 66, 352]))
def test_every_activation_follows_a_layer_or_gates_it(way, activation, outputs):
    weight, bias = weights(outputs, 32)
    x = 3 * rows_of(9, 32)
    function, exact = ACTIVATIONS[activation], F.linear(x.double(), weight.double(), bias.double())
    plain = PACKS[way]("float32")(weight, bias, activation=activation)
    gated = PACKS[way]("float32")(weight, bias, gate=activation)
    gates, ups = exact.chunk(2, dim=-1)
    assert gated.out_features == outputs // 2
    assert error(stored(plain, x), function(exact)) < 2e-6
    assert error(stored(gated, x), function(gates) * ups) < 2e-6


@needs_native
@pytest.mark.parametrize(("way", "factor"), [*product(PACKS, [0.22, 1.0])])
def test_what_is_added_may_be_multiplied(way, factor):
    weight, bias = weights(70, 32)
    x, before = rows_of(5, 32), rows_of(5, 70, seed=2)
    out = before.clone()
    PACKS[way]("float32")(weight, bias).add_to(x, out, factor)
    wanted = before.double() + factor * F.linear(x.double(), weight.double(), bias.double())
    assert error(out, wanted) < 2e-6


@needs_native
def test_extreme_gates_saturate_instead_of_overflowing():
    weight = torch.cat([torch.full((16, 1), 1.0), torch.full((16, 1), 1.0)])
    x = torch.tensor([[-1e4], [-90.0], [0.0], [90.0], [1e4]])
    out = stored(native_pack("float32")(weight, gate="silu"), x)[:, 0]
    assert torch.allclose(out, F.silu(x[:, 0]) * x[:, 0], rtol=1e-5, atol=1e-30)


@needs_native
@pytest.mark.parametrize("unit", UNITS)
def test_rows_and_results_may_lie_in_wider_memory(unit):
    weight, _ = weights(40, 32)
    x = rows_of(6, 60)[:, 10:42]
    out = torch.zeros(6, 100)[:, 30:70]
    native_pack("float32", unit)(weight).store(x, out)
    assert error(out, F.linear(x.double(), weight.double())) < 2e-6


@needs_native_bfloat16
def test_inputs_of_another_dtype_are_not_read_as_if_they_were_of_ours():
    with pytest.raises(AssertionError, match=r"float32 inputs of a layer in torch\.bfloat16"):
        stored(native_pack("bfloat16")(weights(32, 16)[0]), rows_of(1, 16))


@needs_native
@pytest.mark.parametrize(("inputs", "outputs"), [(20, 32), (16, 31)])
def test_rows_that_a_layer_does_not_fit_are_no_memory_it_reads_or_writes(inputs, outputs):
    layer = native_pack("float32")(weights(32, 16)[0])

    with pytest.raises(AssertionError, match=r"rows of 20 for a layer of 16|1 rows do not fit"):
        layer.store(rows_of(1, inputs), torch.empty(1, outputs))


@needs_native
@pytest.mark.parametrize("way", PACKS)
def test_no_rows_are_no_work(way):
    """A step in which no sequence reaches its last token samples nothing."""
    weight, _ = weights(40, 24)
    assert stored(PACKS[way]("float32")(weight), torch.empty(0, 24)).shape == (0, 40)


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("unit", UNITS)
def test_a_row_is_bitwise_the_same_in_any_batch_at_any_number_of_threads(dtype, unit, seed, two_threads):
    chance = random.Random(seed)
    inputs = (64 if unit == "tiles" else 4) * chance.randrange(1, 20)
    outputs = chance.randrange(1, 400)
    if not NativeLinear.can_pack(dtype, inputs, unit):
        pytest.skip(f"this processor has no kernel for {dtype} in {unit}")
    print(f"seed {seed}: {inputs} inputs, {outputs} outputs")
    weight, bias = weights(outputs, inputs, seed=seed)
    linear = native_pack(dtype, unit)(weight, bias)
    x = rows_of(64, inputs, seed=seed)
    x = x if dtype == "float32" else x.bfloat16()
    alone = torch.cat([stored(linear, row[None]) for row in x])
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for _ in range(6):
            chosen = chance.sample(range(64), chance.randrange(1, 65))
            assert torch.equal(stored(linear, x[chosen]), alone[chosen])


def test_the_faster_way_is_chosen_by_measurement(monkeypatch):
    """Whichever is made slow is not chosen."""
    slow = []
    monkeypatch.setattr(measuring, "_seconds", lambda pack, *_: 2.0 if pack in slow else 1.0)
    ways = {name: lambda *_, name=name: name for name in ("vectors", "tiles", "onednn")}
    monkeypatch.setattr(measuring, "native_pack", lambda _, unit: ways[unit])
    monkeypatch.setattr(measuring, "onednn_pack", lambda _: ways["onednn"])
    monkeypatch.setattr(NativeLinear, "can_pack", staticmethod(lambda *_: True))
    for name in ways:
        slow[:] = [way for way in ways.values() if way is not ways[name]]
        assert fastest_pack("float32", 64, 64) == (ways[name], 1.0)


@needs_native_bfloat16
@pytest.mark.parametrize("unit", UNITS)
def test_bfloat16_layers_gate_and_add_as_float32_ones_do(unit):
    weight, bias = weights(96, 64)
    x, before = rows_of(21, 64).bfloat16(), rows_of(21, 96, seed=2)
    exact = F.linear(x.double(), weight.bfloat16().double(), bias.double())
    gates, ups = exact.chunk(2, dim=-1)
    gated = stored(native_pack("bfloat16", unit)(weight, bias, gate="silu"), x)
    assert error(gated, F.silu(gates) * ups) < 5e-6
    added = before.clone()
    native_pack("bfloat16", unit)(weight, bias).add_to(x, added)
    assert error(added, before.double() + exact) < 5e-6


@needs_native_bfloat16
def test_layers_too_narrow_for_tiles_are_computed_in_vectors():
    weight, bias = weights(40, 24)
    x = rows_of(5, 24).bfloat16()
    vectors, tiles = (native_pack("bfloat16", unit)(weight, bias) for unit in ("vectors", "tiles"))
    assert torch.equal(stored(tiles, x), stored(vectors, x))


def test_without_native_kernels_onednn_is_used_and_int8_refused(monkeypatch):
    monkeypatch.setattr(NativeLinear, "can_pack", staticmethod(lambda *_: False))
    pack, seconds = fastest_pack("float32", 64, 64)
    assert isinstance(pack(torch.ones(32, 64)), OneDnnLinear)
    assert seconds > 0
    with pytest.raises(LookupError, match="int8"):
        fastest_pack("int8", 64, 64)


@needs_native
@pytest.mark.parametrize("kind", ["activation", "gate"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("way", PACKS)
def test_what_is_multiplied_and_then_activated_is_what_is_stored_bit_for_bit(way, activation, kind):
    weight, bias = weights(92, 64)
    linear = PACKS[way]("float32")(weight, bias, **{kind: activation})
    x = rows_of(33, 64)
    product = torch.empty(33, linear.product_features, dtype=linear.product_dtype)
    out = torch.empty(33, linear.out_features + 5)[:, : linear.out_features]

    linear.multiply(x, product)
    linear.activate(product, out)

    assert error(product, F.linear(x.double(), weight.double(), bias.double())) < 1e-5
    assert torch.equal(out, stored(linear, x))


@needs_native_bfloat16
@pytest.mark.parametrize("unit", UNITS)
def test_in_bfloat16_too(unit):
    weight, bias = (tensor.bfloat16() for tensor in weights(92, 64))
    linear = NativeLinear("bfloat16", weight, bias, gate="silu", unit=unit)
    x = rows_of(33, 64).bfloat16()
    product, out = torch.empty(33, 92), torch.empty(33, 46, dtype=torch.bfloat16)

    linear.multiply(x, product)
    linear.activate(product, out)

    assert torch.equal(out, stored(linear, x, torch.bfloat16))
