"""The forward pass written out as it runs on CUDA: our Triton kernels between torch's matrix products.

On a CPU under Triton's interpreter; tests/gpu runs it on a device.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift_engine.execution.decoder.decoder import Decoder
from nightshift_engine.execution.decoder.pack import read_decoder
from nightshift_engine.execution.linears.dense import DenseLinear, dense_packing
from nightshift_engine.execution.linears.interface import ACTIVATIONS, Activation
from nightshift_engine.loading.model import prove_model
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.execution.decoder.test_decoder import (
    GPT2_NAMES,
    PLAIN,
    TOKENS,
    Whole,
    inputs,
    load,
    relative_error,
    stir,
)
from tests.unit.engine.tiny.absent_device import DEVICE, AbsentDevice, move
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import engine_config, load_tokenizer, save_model

pytest.importorskip("triton")

from nightshift_engine.execution.decoder.triton_operations import TritonOperations
from nightshift_engine.kernels.triton.rows import activate

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is not in use")
CPU = torch.device("cpu")
KINDS = [
    "gpt2, learned positions, fused heads",
    "gemma2, norms around, scaled embeddings, capped logits",
    "smollm3, a layer without rope",
]
"""Between them, every operation runs; the interpreter is slow."""
ELSEWHERE = [
    "llama 3 rope",
    "qwen3, norms of heads",
    "gpt2, learned positions, fused heads",
    "gpt_neox, parallel with two norms, heads interleaved",
    "phi3, fused gate",
    "cohere, neighbours rotate",
]


def read(model: Any, dtype: torch.dtype = torch.float32) -> Decoder:
    checked = check_model(model, "read")
    operations = TritonOperations(dtype, CPU)
    return read_decoder(model, checked.calls, dense_packing(), dtype, operations=operations)


@pytest.mark.parametrize("name", mostly_exhaustive(PLAIN, default=KINDS))
def test_logits_equal_those_of_the_models_own_modules(name: str, tmp_path: Path) -> None:
    model_type, overrides = PLAIN[name]
    without = GPT2_NAMES if model_type.startswith("gpt") else ()
    model = stir(load(save_model(tmp_path, model_type, without=without, **overrides)))

    decoder = read(copy.deepcopy(model))

    assert not decoder.has_modules
    assert relative_error(model, decoder, rows=[3, 20, TOKENS - 1]) < 1e-5


@pytest.mark.parametrize("name", mostly_exhaustive(ELSEWHERE, default=["phi3, fused gate"]))
@torch.inference_mode()
def test_a_model_on_another_device_is_read_and_computed_there(name: str, tmp_path: Path) -> None:
    """A device refuses to compute with tensors of another."""
    model_type, overrides = PLAIN[name]
    without = GPT2_NAMES if model_type.startswith("gpt") else ()
    model = stir(load(save_model(tmp_path, model_type, without=without, **overrides)))
    moved = copy.deepcopy(model)
    calls = check_model(moved, "read").calls
    token_ids, rows = torch.arange(9) + 30, [2, 8]
    wanted = model(token_ids[None], use_cache=False).logits[0, rows]

    with AbsentDevice():
        move(moved)
        decoder = read_decoder(moved, calls, dense_packing(), torch.float32, context_length=64)
        step = inputs(token_ids, rows)
        layout = replace(step.layout, positions=step.layout.positions.to(DEVICE))
        ids, wanted_rows = token_ids.to(DEVICE), step.logits_rows.to(DEVICE)
        logits = decoder(replace(step, layout=layout, input_ids=ids, logits_rows=wanted_rows), Whole())
        assert logits.device == DEVICE

    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


def test_a_model_on_another_device_is_proven_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift_engine.loading.model._roofline", lambda *_: None)  # it is measured
    model = load(save_model(tmp_path, "qwen3", head_dim=16))
    model.set_attn_implementation("eager")
    config = engine_config(tmp_path, device="cuda", dtype="float32", attention_backend="torch")

    with AbsentDevice():
        proven = prove_model(config, move(model), load_tokenizer(config.model), "digest")

    assert isinstance(proven.forward_pass, Decoder)
    assert proven.facts.device == "cuda"


@pytest.mark.exhaustive
def test_a_mixture_stays_a_module(tmp_path: Path) -> None:
    model = stir(load(save_model(tmp_path, "mixtral", num_local_experts=4)))
    decoder = read(copy.deepcopy(model))
    assert decoder.has_modules
    assert relative_error(model, decoder, rows=[3, TOKENS - 1]) < 1e-5


def test_bfloat16_is_as_close_to_float32_as_the_modules_in_bfloat16(tmp_path: Path) -> None:
    model = load(save_model(tmp_path))
    half = copy.deepcopy(model).bfloat16()
    decoder = read(copy.deepcopy(half), torch.bfloat16)
    rows = list(range(TOKENS))
    token_ids = torch.randint(0, 258, (TOKENS,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = model(token_ids[None]).logits[0]
        theirs = ((half(token_ids[None]).logits[0].float() - wanted).norm() / wanted.norm()).item()

    assert relative_error(model, decoder, rows=rows) < 1.5 * theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_layer_adds_to_float32_whatever_its_dtype(dtype: torch.dtype, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(20, 12, generator=generator).to(dtype) for _ in range(2))
    bias = torch.randn(20, generator=generator).to(dtype).float() if has_bias else None
    out = torch.randn(20, 20, generator=generator)
    wanted = out + 0.5 * (x.float() @ weight.float().T + (0 if bias is None else bias))

    DenseLinear(weight, bias).add_to(x, out, 0.5)

    torch.testing.assert_close(out, wanted, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_activations_are_those_of_torch(activation: Activation, is_gated: bool) -> None:
    x = torch.linspace(-8, 8, 2 * 1100).view(1, -1).flip(1)
    gate, up = x.chunk(2, dim=1) if is_gated else (x, torch.ones(()))
    out = torch.empty(gate.shape)

    activate(x, activation, out)

    torch.testing.assert_close(out, ACTIVATIONS[activation](gate) * up, atol=1e-6, rtol=1e-5)


def test_relu_keeps_what_is_no_number() -> None:
    out = torch.empty(1, 3)
    activate(torch.tensor([[float("nan"), -1.0, 2.0]]), "relu", out)
    assert out[0, 0].isnan()
    assert out[0, 1:].tolist() == [0.0, 2.0]
