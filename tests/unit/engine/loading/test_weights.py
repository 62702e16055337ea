"""Promises of a checkpoint's files, read without running the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from nightshift_engine.errors import InvalidConfig
from nightshift_engine.loading.weights import eos_token_ids, model_id, resolve_device, resolve_dtype
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.decoders import BASE, byte_tokenizer

TOKENIZER = Tokenizer(byte_tokenizer())
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def config(model_type: str, **overrides: Any) -> Any:
    return AutoConfig.for_model(model_type, **(BASE | overrides))


def test_auto_is_float32_on_cpu_and_the_checkpoints_own_on_cuda() -> None:
    assert resolve_dtype("auto", torch.bfloat16, CPU) == torch.float32
    assert resolve_dtype("auto", torch.bfloat16, CUDA) == torch.bfloat16
    assert resolve_dtype("auto", None, CUDA) == torch.float32
    assert resolve_dtype("float16", torch.bfloat16, CPU) == torch.float16


def test_a_device_that_does_not_exist_is_refused() -> None:
    for name in ("meta", "xpu", "mps"):  # torch knows them, and this machine has none
        with pytest.raises(InvalidConfig, match=f"'{name}' cannot be used here"):
            resolve_device(name)
    with pytest.raises(InvalidConfig, match="abacus"):
        resolve_device("abacus")


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        (None, {256}),
        (7, {7, 256}),
        ([7, 9], {7, 9, 256}),
        (256, {256}),
        ([7, 258, -1], {7, 256}),  # as no logit is theirs, they can neither come nor be held off
        ("7", {256}),
        ([[7]], {256}),
    ],
)
def test_ends_of_sequence_come_from_generation_config_and_tokenizer(
    configured: Any, expected: set[int]
) -> None:
    generation_config = SimpleNamespace(eos_token_id=configured)
    model = SimpleNamespace(generation_config=generation_config, config=config("llama", vocab_size=258))

    assert eos_token_ids(model, TOKENIZER) == expected


def test_a_models_id_is_its_hub_id_or_the_last_part_of_its_path(tmp_path: Path) -> None:
    assert model_id("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert model_id(str(tmp_path)) == tmp_path.name
    assert model_id(str(tmp_path) + "/") == tmp_path.name
