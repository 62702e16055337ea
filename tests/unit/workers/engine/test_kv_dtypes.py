"""KV memory in a narrower dtype than the computation: how much more it holds, and what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.unit.workers.engine.tiny_models import complete, greedy, load_engine
from workers.engine import EngineConfig, InvalidConfig, Request
from workers.engine.batching.batcher import Chunk
from workers.engine.batching.sequence import Sequence
from workers.engine.execution.attention_backends import (
    has_transposed_keys,
    make_attention,
    resolve_attention_backend,
)
from workers.engine.execution.forward_pass import ModulePass
from workers.engine.execution.kv_memory import KvMemory
from workers.engine.execution.model_runner import ModelRunner
from workers.engine.selftest import check_model

CPU = torch.device("cpu")
PROMPT = list(range(40, 100))
CHUNK = 7
RELATIVE_ERROR_MAX = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.int8: 2e-2}
"""Of logits, against KV in float32: root mean square over their spread. Random weights, two layers."""


def logits(directory: Path, backend: str, kv_dtype: torch.dtype) -> Tensor:
    """At the end of every chunk of a prompt, so that all but the first look back into memory."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    checked = check_model(model, "llama", backend)
    kv = KvMemory(
        checked.shapes,
        num_blocks=8,
        block_size=16,
        dtype=kv_dtype,
        device=CPU,
        transposed_keys=has_transposed_keys(backend),
    )
    runner = ModelRunner(ModulePass(model), kv, make_attention(backend, kv), CPU)
    sequence = Sequence(Request("one", ()), arrival=0, num_tokens_max=len(PROMPT) + 1)
    sequence.blocks, rows = [5, 2, 7, 1], []
    for end in range(CHUNK, len(PROMPT), CHUNK):
        sequence.token_ids = PROMPT[:end]
        rows.append(runner.forward([Chunk(sequence, sequence.num_uncomputed_tokens)]).clone())
        sequence.num_computed_tokens = end
    return torch.cat(rows)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("kv_dtype", list(RELATIVE_ERROR_MAX))
def test_narrow_kv_moves_logits_a_little(llama: Path, backend: str, kv_dtype: torch.dtype) -> None:
    exact = logits(llama, backend, torch.float32)

    error = (logits(llama, backend, kv_dtype) - exact).square().mean().sqrt() / exact.std()

    print(f"{error=}")
    assert 0 < error < RELATIVE_ERROR_MAX[kv_dtype]


@pytest.mark.parametrize("backend", ["torch", "native"])
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


def test_what_is_not_a_kv_dtype_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"kv_cache_dtype must be one of auto, .*, got 'fp8'"):
        EngineConfig("model", kv_cache_dtype="fp8")  # type: ignore[arg-type]


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


def test_without_kernels_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_attention_backend("auto", CPU, torch.float32) == "native"
    monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")

    assert resolve_attention_backend("auto", CPU, torch.float32) == "torch"
    with pytest.raises(InvalidConfig, match="turned off or cannot be built"):
        resolve_attention_backend("native", CPU, torch.float32)
