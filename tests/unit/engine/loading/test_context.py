"""The context a checkpoint may serve, and that positions beyond its original one are computed rightly."""

import random
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from nightshift_engine import Request
from nightshift_engine.errors import InvalidConfig, UnsupportedModel
from nightshift_engine.loading.context import context_length
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.execution.decoder.test_decoder import LLAMA3_ROPE
from tests.unit.engine.tiny.decoders import (
    BASE,
    byte_tokenizer,
    complete,
    greedy,
    greedy_answers,
    load_engine,
    reference_greedy,
    save_model,
)

TOKENIZER = Tokenizer(byte_tokenizer())
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0}
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LLAMA3 = LLAMA3_ROPE | {"factor": 4.0}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.5, 3.0, 4.0],
}


def config(model_type: str, **overrides: Any) -> Any:
    return AutoConfig.for_model(model_type, **deepcopy(BASE | overrides))  # it fills in its dictionaries


def lengths(model_type: str, wanted: int | None = None, **overrides: Any) -> int:
    return context_length(config(model_type, **overrides), TOKENIZER, wanted)


def test_the_context_is_what_the_model_says_or_less_if_asked() -> None:
    assert lengths("llama") == 128
    assert lengths("llama", 100) == 100


def test_a_model_that_states_no_context_needs_one_from_the_configuration() -> None:
    silent = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=None))

    with pytest.raises(InvalidConfig, match="no room for a prompt and an answer"):
        lengths("llama", max_position_embeddings=-4)
    with pytest.raises(InvalidConfig, match="set max_model_len"):
        context_length(silent, TOKENIZER, None)
    assert context_length(silent, TOKENIZER, 100) == 100


@pytest.mark.parametrize(
    ("declared", "rope", "expected"),
    [
        (32_768, YARN | {"original_max_position_embeddings": 32_768}, 131_072),  # Qwen2.5's advice
        (40_960, YARN | {"original_max_position_embeddings": 32_768}, 131_072),  # Qwen3's
        (131_072, YARN | {"original_max_position_embeddings": 4_096, "factor": 32.0}, 131_072),  # gpt-oss
        (163_840, YARN | {"original_max_position_embeddings": 4_096, "factor": 40.0}, 163_840),  # deepseek
        (65_536, YARN | {"original_max_position_embeddings": 8_192, "factor": None}, 65_536),
        (8_192, YARN, 32_768),  # transformers takes the declared length for the original one
        (4_096, LINEAR, 16_384),  # vicuna-16k
        (131_072, LLAMA3 | {"original_max_position_embeddings": 8_192}, 131_072),  # Llama 3.1
        (4_096, {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}, 4_096),
        (4_096, {"rope_type": "default", "rope_theta": 10_000.0}, 4_096),
    ],
)
def test_a_scaled_rotary_embedding_extends_the_context_as_in_vllm(
    declared: int, rope: dict[str, Any], expected: int
) -> None:
    fields = {"max_position_embeddings": declared, "rope_parameters": rope}

    assert lengths("llama", **fields) == expected
    assert lengths("llama", expected, **fields) == expected
    with pytest.raises(InvalidConfig, match=f"exceeds the model's context of {expected} tokens"):
        lengths("llama", expected + 1, **fields)


def test_a_scaling_written_as_in_older_files_is_read_too() -> None:
    """`rope_scaling` with `type`, as in checkpoints of transformers 4."""
    old = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}

    assert lengths("qwen2", max_position_embeddings=32_768, rope_scaling=old) == 131_072


def test_a_model_with_a_rotary_embedding_per_kind_of_layer_states_its_context_itself() -> None:
    ropes = {"full_attention": LINEAR | {"factor": 8.0}, "sliding_attention": {"rope_type": "default"}}

    assert lengths("gemma3_text", max_position_embeddings=131_072, rope_parameters=ropes) == 131_072


def test_longrope_serves_its_original_context_and_the_longer_one_if_asked() -> None:
    fields = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}

    assert lengths("phi3", **fields) == 64
    assert lengths("phi3", 128, **fields) == 128
    with pytest.raises(InvalidConfig, match="exceeds the model's context of 128 tokens"):
        lengths("phi3", 129, **fields)


@pytest.mark.parametrize(
    ("model_type", "fields", "wanted"),
    [
        pytest.param("llama", {"rope_parameters": YARN}, None, marks=pytest.mark.exhaustive),
        pytest.param("qwen3", {"rope_parameters": YARN, "head_dim": 8}, 128, marks=pytest.mark.exhaustive),
        pytest.param("llama", {"rope_parameters": LINEAR}, None, marks=pytest.mark.exhaustive),
        pytest.param(
            "llama",
            {"rope_parameters": LLAMA3, "max_position_embeddings": 128},
            None,
            marks=pytest.mark.exhaustive,
        ),
        (
            "gpt_oss",
            {
                "rope_parameters": YARN | {"original_max_position_embeddings": 32, "truncate": False},
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "head_dim": 8,
            },
            None,
        ),
        (
            "ministral3",  # beyond the original length it scales its queries too
            {
                "rope_parameters": YARN
                | {"original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.8},
                "head_dim": 8,
            },
            None,
        ),
        (
            "phi3",
            {
                "rope_parameters": LONGROPE,
                "original_max_position_embeddings": 32,
                "max_position_embeddings": 128,
            },
            128,
        ),
    ],
    ids=["yarn", "yarn, asked for", "linear", "llama3", "yarn of gpt-oss", "scaled queries", "longrope"],
)
def test_positions_beyond_the_original_context_are_those_of_generate(
    tmp_path: Path, model_type: str, fields: dict[str, Any], wanted: int | None
) -> None:
    settings = deepcopy({"max_position_embeddings": 32} | fields)
    directory = save_model(tmp_path / "model", model_type, **settings)
    rng = random.Random(11)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in (40, 90, 100)]
    expected = reference_greedy(directory, prompts, 20)

    engine = load_engine(directory, max_model_len=wanted)

    assert engine.context_length == 128
    assert greedy_answers(engine, prompts, 20) == expected


def test_longrope_of_the_original_context_stays_with_the_short_factors(tmp_path: Path) -> None:
    fields = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}
    directory = save_model(tmp_path / "model", "phi3", **fields)
    [expected] = reference_greedy(directory, [[5, 6, 7]], 20)

    [answer] = complete(load_engine(directory), Request("short", [5, 6, 7], greedy(20)))

    assert answer.token_ids == expected


def test_a_longrope_that_changes_its_scale_with_the_length_is_refused_beyond_its_context(
    tmp_path: Path,
) -> None:
    rope = LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.3, "original_max_position_embeddings": 64}
    mixture = {"num_local_experts": 4, "num_experts_per_tok": 2}
    directory = save_model(tmp_path / "model", "phimoe", rope_parameters=rope, **mixture)

    assert load_engine(directory).context_length == 64
    with pytest.raises(UnsupportedModel, match="cannot be held constant beyond 64 tokens"):
        load_engine(directory, max_model_len=65)
