"""Decoders of every kind on a device: greedy output equals that of `generate` on a CPU, recorded and not."""

import random
from pathlib import Path

import pytest
import torch

from tests.unit.engine.loading.test_model_families import CASES, GPT2_NAMES, NEW_TOKENS, PROMPT_LENGTHS
from tests.unit.engine.tiny.decoders import (
    greedy_answers,
    load_engine,
    reference_greedy,
    save_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SEED = 5
FAMILIES = [
    "llama",
    "llama, odd head dim",
    "mistral",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "opt",
    "gpt_neox",
    "phi3",
    "olmo2",
    "cohere2",
    "glm4",
    "granite, multipliers",
    "mixtral",
    "qwen3_moe",
    "qwen2_moe",
    "gpt_oss",
    "deepseek_v3",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_output_equals_generate(name: str, tmp_path: Path) -> None:
    print(f"{SEED=}")
    without = GPT2_NAMES if name == "gpt2" else ()
    checkpoint = save_model(tmp_path / "model", name.split(",")[0], without=without, **CASES[name])
    rng = random.Random(SEED)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in PROMPT_LENGTHS]

    engine = load_engine(
        checkpoint, device="cuda", dtype="float32", max_num_seqs=3, max_num_batched_tokens=20
    )

    assert greedy_answers(engine, prompts, NEW_TOKENS) == reference_greedy(checkpoint, prompts, NEW_TOKENS)
    engine.check_integrity()
