"""Greedy output equals that of `generate`, family by family, however cramped the engine is.

Random weights prove wiring (positions, masks, windows, heads), not quality. Each family runs roomy, and then
with a token budget and a KV memory so small that prompts are cut and sequences preempted. `make test` runs
one family of each kind, `make test-all` all of them.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Request
from nightshift_engine.core.kv_groups import BlockDemand
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    complete,
    greedy,
    make_cramped_engine,
    make_engine,
    reference_greedy,
    save_model,
)

NEW_TOKENS = 12
PROMPT_LENGTHS = (9, 12, 30, 5)
SEED = 5

WINDOW: dict[str, Any] = {"sliding_window": 8}  # shorter than most prompts
ALTERNATING: dict[str, Any] = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
GEMMA: dict[str, Any] = {"head_dim": 8, "query_pre_attn_scalar": 8}
MIXTURE: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MIXTURE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "mlp_only_layers": [],
}
LATENT: dict[str, Any] = {  # keys and values of different width
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
GPT2_NAMES = ("intermediate_size", "num_key_value_heads")

CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, one KV head": {"num_key_value_heads": 1},
    "llama, as many KV heads": {"num_key_value_heads": 4},
    "llama, tied embeddings": {"tie_word_embeddings": True},
    "llama, odd head dim": {"head_dim": 10},
    "llama, three heads of 14": {"hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3},
    "llama, rows a cache way apart": {"hidden_size": 1024, "head_dim": 256, "num_hidden_layers": 1},
    "llama, scaled rope": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "mistral": WINDOW,
    "mistral, window of two": {"sliding_window": 2},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "gemma": {"head_dim": 8},
    "gemma2": GEMMA | WINDOW,
    "gemma3_text": GEMMA | ALTERNATING,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": {},
    "gpt_neox, in sequence": {"use_parallel_residual": False},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "biogpt": {},
    "persimmon": {},
    "phi": {},
    "phi, norms of heads": {"qk_layernorm": True},
    "phi3": WINDOW,
    "granite": {},
    "granite, multipliers": {"residual_multiplier": 0.3, "embedding_multiplier": 3.0, "logits_scaling": 4.0},
    "olmo": {},
    "olmo2": {},
    "olmo3": ALTERNATING,
    "smollm3": {},
    "stablelm": {},
    "stablelm, parallel": {"use_parallel_residual": True},
    "arcee": {},
    "apertus": {},
    "ernie4_5": {},
    "seed_oss": {"head_dim": 8},
    "vaultgemma": GEMMA | WINDOW,
    "starcoder2": WINDOW,
    "cohere": {},
    "cohere, norms of heads": {"use_qk_norm": True},
    "cohere2": ALTERNATING,
    "glm4": {"head_dim": 8},
    "nemotron": {},
    "exaone4": ALTERNATING,
    "mixtral": MIXTURE,
    "qwen2_moe": QWEN_MIXTURE,
    "qwen3_moe": QWEN_MIXTURE | {"head_dim": 8},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": MIXTURE | ALTERNATING | {"head_dim": 8},
    "deepseek_v3": LATENT,
    "deepseek_v3, plain queries": LATENT | {"q_lora_rank": None},
    "deepseek_v2": LATENT | {"topk_method": "greedy"},
    "minicpm3": LATENT,
    "granitemoe": MIXTURE,
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
    "glm4_moe": LATENT | {"num_key_value_heads": 2, "head_dim": 8},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2, "head_dim": 8},  # reads its router's dtype
    "jetmoe": MIXTURE | {"kv_channels": 8},
    "minimax_m2": MIXTURE | {"head_dim": 8},
    "llama4_text": MIXTURE
    | {"head_dim": 8, "intermediate_size_mlp": 48, "layer_types": ["full_attention"] * 2},
    "gemma4_text": GEMMA | ALTERNATING | {"global_head_dim": 8, "hidden_size_per_layer_input": 8},
    "bitnet": {},
    "helium": {"head_dim": 8},
    "nanochat": {},
}

KINDS = {
    "llama, one KV head",
    "llama, odd head dim",
    "qwen3",
    "gemma2",
    "gpt2",
    "opt",
    "gpt_neox",
    "olmo2",
    "smollm3",
    "cohere2",
    "mixtral",
    "minicpm3",
    "llama4_text",
    "gemma4_text",
}
"""Between them and those of test_sliding_windows.py, test_latent_kv.py and test_context.py (mistral, gpt_oss,
deepseek_v3, phi3), they have every part that the other families are made of.
"""


@pytest.fixture(params=mostly_exhaustive(CASES, default=KINDS))
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name: str = request.param
    without = GPT2_NAMES if name in ("gpt2", "gpt_bigcode") else ()
    return save_model(tmp_path / "model", name.split(",")[0], without=without, **CASES[name])


def test_greedy_output_equals_generate(checkpoint: Path) -> None:
    rng = random.Random(SEED)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in PROMPT_LENGTHS]
    requests = [Request(str(n), prompt, greedy(NEW_TOKENS)) for n, prompt in enumerate(prompts)]
    expected = reference_greedy(checkpoint, prompts, NEW_TOKENS)

    roomy = make_engine(checkpoint)
    alone = [complete(roomy, request)[0].token_ids for request in requests[:1]]
    batched = [completion.token_ids for completion in complete(roomy, *requests)]
    windows = roomy._tables.windows
    num_blocks = BlockDemand(windows, block_size=4).blocks_for(max(PROMPT_LENGTHS) + NEW_TOKENS)
    cramped = make_cramped_engine(
        checkpoint, num_kv_blocks=num_blocks, max_num_batched_tokens=7, max_num_seqs=3
    )
    squeezed = [completion.token_ids for completion in complete(cramped, *requests)]

    assert alone == expected[:1]
    assert batched == expected
    assert squeezed == expected
    if None in windows:  # else one sequence after another fits, and none outgrows its window
        assert cramped.stats().preemptions > 0, "the cramped engine was not cramped"
