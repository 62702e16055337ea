"""Narrow weights on a device: what our Triton kernel and torch's scaled product make of them there."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

from nightshift_engine.checkpoint.narrow.weight import NarrowWeight, round_weight  # noqa: E402
from nightshift_engine.execution.linears.narrow_cuda import (  # noqa: E402
    TritonNarrowLinear,
    computes_scaled,
    multiplies_fp8,
    torch_product,
)
from tests.unit.engine.execution.test_narrow_linears import CODES, narrow, rows_of  # noqa: E402
from tests.unit.engine.tiny.decoders import greedy_answers, load_engine, random_prompts, save_model  # noqa: E402
from tests.unit.engine.tiny.narrow import FORMATS, save_narrow  # noqa: E402

CUDA = torch.device("cuda", 0)
needs_fp8 = pytest.mark.skipif(
    not torch.cuda.is_available() or not multiplies_fp8(CUDA), reason="this GPU multiplies no fp8"
)


@pytest.mark.parametrize("rows", [1, 17, 130])
@pytest.mark.parametrize("kind", CODES)
def test_the_kernel_multiplies_by_the_dequantised_weight(kind: str, rows: int) -> None:
    weight, x = narrow(kind, 200, 256), rows_of(rows, 256, torch.bfloat16).to(CUDA)
    out = torch.empty(rows, 200, device=CUDA)

    TritonNarrowLinear(weight.to(CUDA)).store(x, out)

    wanted = x.double() @ weight.dequantized(torch.bfloat16).to(CUDA).double().T
    assert (out - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@needs_fp8
def test_torch_multiplies_fp8_by_row_and_by_block() -> None:
    """Where it does not, layers are computed with inputs as they are, and this says so."""
    by_row = round_weight(torch.randn(256, 384), "fp8")
    assert by_row is not None
    assert computes_scaled(by_row.to(CUDA), torch_product)
    scales = torch.rand(2, 3).repeat_interleave(128, 0)
    codes = torch.randn(256, 384).to(torch.float8_e4m3fn)
    blocks = NarrowWeight("fp8", codes, scales, None, 128, rounds_inputs=True)
    assert computes_scaled(blocks.to(CUDA), torch_product)


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_checkpoint_is_proven_and_answers(name: str, tmp_path: Path) -> None:
    engine = load_engine(save_narrow(tmp_path, FORMATS[name]), device="cuda", dtype="bfloat16", block_size=16)
    assert [len(answer) for answer in greedy_answers(engine, random_prompts(3), 8)] == [8] * 3


@pytest.mark.parametrize("code", ["int4", "int8", pytest.param("fp8", marks=needs_fp8)])
def test_a_checkpoint_is_rounded_at_load_and_answers(code: str, tmp_path: Path) -> None:
    directory = save_model(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16)
    engine = load_engine(directory, device="cuda", dtype="bfloat16", weight_dtype=code, block_size=16)
    assert [len(answer) for answer in greedy_answers(engine, random_prompts(3), 8)] == [8] * 3


def test_fewer_bits_take_less_memory_of_the_device(tmp_path: Path) -> None:
    directory = save_model(tmp_path, hidden_size=1024, intermediate_size=4096, head_dim=64)

    def allocated(code: str) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        engine = load_engine(directory, device="cuda", dtype="bfloat16", weight_dtype=code, block_size=16)
        taken = torch.cuda.memory_allocated() - before
        del engine
        return taken

    assert allocated("int4") < 0.5 * allocated("auto")


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    weight, x = narrow("int4", 64, 128).to(CUDA), rows_of(16, 128, torch.bfloat16).to(CUDA)
    linear = TritonNarrowLinear(weight)
    together = torch.empty(16, 64, device=CUDA)
    linear.store(x, together)
    alone = torch.empty(1, 64, device=CUDA)
    linear.store(x[:1], alone)
    assert torch.equal(alone, together[:1])
