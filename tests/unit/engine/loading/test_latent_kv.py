"""Multi-head latent attention: KV memory keeps the latent vectors, whatever the number of heads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nightshift_engine import Request
from nightshift_engine.errors import InvalidConfig, UnsupportedModel
from nightshift_engine.execution.attention.selection import resolve_attention_backend
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.loading.test_model_families import LATENT
from tests.unit.engine.tiny.decoders import (
    complete,
    greedy,
    make_cramped_engine,
    make_engine,
    random_prompts,
    reference_greedy,
    save_model,
)

DIMS: dict[str, Any] = LATENT | {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
}
EXPANDED_BYTES = 2 * 8 * (16 + 8 + 20) * 4
"""A token of two layers and eight heads, in float32."""
KEPT_BYTES = 2 * (2 * 16 + 8) * 4
"""Latent vectors of 16, as key and as value, and the rotated part of 8."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "deepseek_v3", **DIMS)


def test_the_same_memory_holds_as_many_more_tokens_as_latent_vectors_are_smaller(checkpoint: Path) -> None:
    tokens = 64
    engine = make_engine(checkpoint, num_kv_blocks=None, kv_cache_bytes=tokens * EXPANDED_BYTES)

    assert EXPANDED_BYTES / KEPT_BYTES == 8.8
    assert engine.stats().blocks_total * 4 == tokens * 88 // 10 // 4 * 4


def test_answers_over_latent_vectors_are_those_of_generate_when_sequences_are_preempted(
    checkpoint: Path,
) -> None:
    prompts = random_prompts(6)
    engine = make_cramped_engine(checkpoint, num_kv_blocks=24, max_num_batched_tokens=16)
    requests = (Request(f"r{n}", prompt, greedy(20)) for n, prompt in enumerate(prompts))
    answers = [completion.token_ids for completion in complete(engine, *requests)]

    assert answers == reference_greedy(checkpoint, prompts, 20)
    assert engine.stats().preemptions > 0


def test_latent_attention_built_otherwise_is_refused_with_the_bytes_it_would_take(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32)
    for layer in model.model.layers:
        made = layer.self_attn.kv_b_proj
        other = torch.nn.Linear(made.in_features, made.out_features)  # with a bias
        with torch.no_grad():
            other.weight.copy_(made.weight)
        layer.self_attn.kv_b_proj = other

    said = rf"latent KV of {2 * (16 + 8) * 4} bytes a token would be kept expanded, in {EXPANDED_BYTES}"
    with pytest.raises(UnsupportedModel, match=said):
        check_model(model, "m")


def test_kernels_for_narrower_heads_are_not_chosen_for_latent_vectors() -> None:
    with pytest.raises(InvalidConfig, match="heads of at most 256, the model's latent KV has 576"):
        resolve_attention_backend("triton", torch.device("cuda"), torch.bfloat16, latent_dim=576)
    assert resolve_attention_backend("auto", torch.device("cuda"), torch.bfloat16, latent_dim=576) == "torch"
