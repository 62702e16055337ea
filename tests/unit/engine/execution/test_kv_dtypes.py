"""KV memory in a narrower dtype than the computation: how much more it holds, and what that costs."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nightshift_engine import EngineConfig, Request
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.errors import InvalidConfig
from nightshift_engine.execution.attention.native_backend import native_attention_computes
from nightshift_engine.execution.attention.selection import (
    has_transposed_keys,
    make_attention,
    resolve_attention_backend,
)
from nightshift_engine.execution.forward_pass import ModulePass
from nightshift_engine.execution.kv_memory import QUANTISED_DTYPES, KvMemory, KvShape
from nightshift_engine.execution.model_runner import ModelRunner
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import complete, greedy, load_engine

CPU = torch.device("cpu")
PROMPT = list(range(40, 100))
CHUNK = 7
RELATIVE_ERROR_MAX = {
    torch.float16: 1e-3,
    torch.bfloat16: 1e-2,
    torch.int8: 2e-2,
    torch.float8_e4m3fn: 1e-1,
}
"""Largest error of logits against KV in float32: root mean square over their spread."""


def logits(
    directory: Path,
    backend: str,
    kv_dtype: torch.dtype,
    device: torch.device = CPU,
) -> Tensor:
    """Logits at the end of every chunk of a prompt: all chunks but the first look back into memory."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval().to(device)
    checked = check_model(model, "llama", backend)
    kv = KvMemory(
        checked.shapes,
        num_blocks=8,
        block_size=16,
        dtype=kv_dtype,
        device=device,
        transposed_keys=has_transposed_keys(backend),
    )
    runner = ModelRunner(ModulePass(model), kv, make_attention(backend, kv), device)
    sequence = Sequence(Request("one", ()), arrival=0, num_tokens_max=len(PROMPT) + 1)
    sequence.add_blocks([5, 2, 7, 1])
    rows = []
    for end in range(CHUNK, len(PROMPT), CHUNK):
        sequence.token_ids = array("q", PROMPT[:end])
        rows.append(runner.forward([Chunk(sequence, sequence.num_uncomputed_tokens)]).clone())
        sequence.num_computed_tokens = end
    return torch.cat(rows)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_narrow_kv_moves_logits_a_little(llama: Path, backend: str, kv_dtype: torch.dtype) -> None:
    if backend == "native" and not native_attention_computes(torch.float32, kv_dtype):
        pytest.skip(f"this processor has no kernel for {kv_dtype}")
    exact = logits(llama, backend, torch.float32)

    error = (logits(llama, backend, kv_dtype) - exact).square().mean().sqrt() / exact.std()

    assert 0 < error < RELATIVE_ERROR_MAX[kv_dtype]


@pytest.mark.parametrize("backend", mostly_exhaustive(["torch", "native"], default=["native"]))
def test_an_engine_with_int8_kv_holds_more_and_completes(llama: Path, backend: str) -> None:
    settings = {
        "attention_backend": backend,
        "deterministic": backend == "native",
        "num_kv_blocks": None,
        "kv_cache_bytes": 100_000,
    }
    wide, narrow = load_engine(llama, **settings), load_engine(llama, kv_cache_dtype="int8", **settings)

    [first] = complete(narrow, Request("1", PROMPT, greedy(30)))
    [again] = complete(narrow, Request("2", PROMPT, greedy(30)))

    assert narrow.stats().blocks_total > wide.stats().blocks_total
    assert len(first.token_ids) == 30
    assert again.num_cached_tokens > 0
    if narrow.made_by.deterministic:  # then it makes no difference what was found in memory
        assert again.token_ids == first.token_ids
    assert narrow.made_by.kv_cache_dtype == "int8"


@pytest.mark.parametrize("dtype", QUANTISED_DTYPES)
def test_eight_bits_have_a_scale_per_token_and_head_which_counts_too(dtype: torch.dtype) -> None:
    shape = KvShape(num_heads=2, key_dim=8, value_dim=4)

    [layer] = KvMemory({3: shape}, num_blocks=5, block_size=16, dtype=dtype, device=CPU).layers.values()

    assert [tensor.dtype for tensor in layer.tensors] == [dtype, dtype, torch.float32, torch.float32]
    sizes = [tuple(tensor.shape) for tensor in layer.tensors]
    assert sizes == [(5, 2, 16, 8), (5, 2, 16, 4), (5, 2, 16), (5, 2, 16)]
    assert not any(tensor.float().any() for tensor in layer.tensors)
    assert shape.bytes_per_token(dtype) == 2 * (8 + 4 + 2 * 4)
    assert sum(tensor.nbytes for tensor in layer.tensors) == 5 * 16 * shape.bytes_per_token(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *QUANTISED_DTYPES])
def test_cleared_blocks_hold_zeros_and_the_others_what_they_held(dtype: torch.dtype) -> None:
    kv = KvMemory({0: KvShape(2, 8, 4)}, num_blocks=4, block_size=16, dtype=dtype, device=CPU)
    for tensor in kv.layers[0].tensors:
        tensor.fill_(1 if tensor.dtype == torch.int8 else float("nan"))  # int8 has its NaN in its scales

    kv.clear([1, 3])

    for tensor in kv.layers[0].tensors:
        numbers = tensor.float().nan_to_num(nan=1.0)
        assert torch.all(numbers[[1, 3]] == 0)
        assert torch.all(numbers[[0, 2]] == 1)


def test_what_is_not_a_kv_dtype_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"kv_cache_dtype must be one of auto, .*, got 'int3'"):
        EngineConfig("model", kv_cache_dtype="int3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kv_dtype", "reason"),
    [
        ("native", torch.float64, "cannot convert"),
        ("varlen", torch.int8, "keeps KV in the dtype of the model"),
    ],
)
def test_a_back_end_that_cannot_compute_over_it_is_refused(
    name: str, kv_dtype: torch.dtype, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"attention_backend '{name}' does not run here: .*{reason}"):
        resolve_attention_backend(name, CPU, torch.float32, kv_dtype)


@pytest.mark.parametrize("name", ["auto", "native", "torch", "varlen"])
def test_fp8_is_refused_where_no_kernel_computes_it_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"'fp8' needs triton and a CUDA device .* 'int8' is as small"):
        resolve_attention_backend(name, CPU, torch.float32, torch.float8_e4m3fn)


@pytest.mark.parametrize("name", ["auto", "triton"])
def test_fp8_needs_a_device_that_converts_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    cuda, capability = torch.device("cuda"), (8, 9)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_attention_backend(name, cuda, torch.bfloat16, torch.float8_e4m3fn) == "triton"

    capability = (8, 0)

    assert resolve_attention_backend(name, cuda, torch.bfloat16, torch.int8) == "triton"
    with pytest.raises(InvalidConfig, match=r"capability \(8, 0\); .*'int8' is as small"):
        resolve_attention_backend(name, cuda, torch.bfloat16, torch.float8_e4m3fn)


def test_without_kernels_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_attention_backend("auto", CPU, torch.float32) == "native"
    monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")

    assert resolve_attention_backend("auto", CPU, torch.float32) == "torch"
    with pytest.raises(InvalidConfig, match="turned off or cannot be built"):
        resolve_attention_backend("native", CPU, torch.float32)
