"""LoRA adapters as PEFT saves them: what is read of their files, and what is refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nightshift_engine.checkpoint.adapters import read_adapter
from nightshift_engine.errors import UnsupportedAdapter

PATH = "model.layers.0.self_attn.q_proj"
KEY = f"base_model.model.{PATH}.lora_"


def save(directory: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> str:
    fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 8} | config
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    pair = {f"{KEY}A.weight": torch.ones(4, 6), f"{KEY}B.weight": torch.ones(5, 4)}
    save_file(pair if tensors is None else tensors, directory / "adapter_model.safetensors")
    return str(directory)


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {"q_proj": 3}}, 0.75),
        ({"r": 9, "rank_pattern": {"layers.0.self_attn.q_proj": 4}}, 2.0),
        ({"init_lora_weights": "gaussian", "fan_in_fan_out": True, "lora_dropout": 0.1}, 2.0),
    ],
)
def test_the_scaling_is_peft_s(tmp_path: Path, config: dict[str, Any], scaling: float) -> None:
    adapter = read_adapter("sum", save(tmp_path, **config))
    assert adapter.pairs[PATH].scaling == pytest.approx(scaling)
    assert {path: (len(pair.a), len(pair.b)) for path, pair in adapter.pairs.items()} == {PATH: (4, 5)}


def test_the_digest_is_that_of_numbers_and_configuration(tmp_path: Path) -> None:
    first = read_adapter("sum", save(tmp_path)).digest
    again = read_adapter("other", save(tmp_path)).digest
    scaled = read_adapter("sum", save(tmp_path, lora_alpha=9)).digest
    pair = {f"{KEY}A.weight": torch.ones(4, 6), f"{KEY}B.weight": torch.full((5, 4), 2.0)}

    assert first == again
    assert len({first, scaled, read_adapter("sum", save(tmp_path, pair)).digest}) == 3


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is \\['lm_head'\\]"),
        ({"use_dora": True}, "use_dora is True"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"r": 0}, "r must be an integer of at least 1, got 0"),
        ({"r": True}, "r must be an integer"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern must hold numbers"),
        ({"alpha_pattern": [1]}, "alpha_pattern must hold numbers"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern has a key that is no pattern"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number up to 1e\\+09"),
        (
            {"init_lora_weights": "pissa_niter_16"},
            "init_lora_weights is 'pissa_niter_16', which changes the base",
        ),
        ({"r": 8}, "lora_A \\[4, 6\\] and lora_B \\[5, 4\\], which are not of rank 8"),
    ],
)
def test_a_field_that_is_not_served_is_named(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedAdapter, match=f"adapter 'sum' cannot be used: .*{says}"):
        read_adapter("sum", save(tmp_path, **config))


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        ("model.embed_tokens.lora_embedding_A", torch.ones(4, 6), "it belongs to an embedding"),
        (f"{PATH}.lora_magnitude_vector", torch.ones(5), "it belongs to DoRA"),
        ("lm_head.modules_to_save.weight", torch.ones(5, 5), "it belongs to a whole module"),
        (f"{PATH}.lora_A.weight", torch.ones(4, 6, dtype=torch.int8), "int8 \\[4, 6\\]"),
        (f"{PATH}.lora_A.weight", torch.ones(4), "float32 \\[4\\]"),
        (f"{PATH}.lora_A.weight", torch.full((4, 6), math.nan), "numbers that are not finite"),
        ("model.layers.1.self_attn.q_proj.lora_A.weight", torch.ones(4, 6), "layers.1.* has no lora_B"),
    ],
)
def test_a_tensor_that_is_no_update_of_a_linear_layer_is_named(
    tmp_path: Path, name: str, tensor: torch.Tensor, says: str
) -> None:
    pair = {f"{KEY}A.weight": torch.ones(4, 6), f"{KEY}B.weight": torch.ones(5, 4)}
    directory = save(tmp_path, pair | {f"base_model.model.{name}": tensor})
    with pytest.raises(UnsupportedAdapter, match=says):
        read_adapter("sum", directory)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("adapter_config.json", None, "adapter_config.json cannot be read: No such file"),
        ("adapter_model.safetensors", None, "adapter_model.safetensors cannot be read: No such file"),
        ("adapter_config.json", b"{", "adapter_config.json is no JSON"),
        ("adapter_config.json", b"[]", "adapter_config.json holds no object"),
        ("adapter_config.json", b"[" * 100_000, "adapter_config.json is no JSON"),
        ("adapter_model.safetensors", b"half a file", "adapter_model.safetensors cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, content: bytes | None, says: str) -> None:
    directory = save(tmp_path)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(UnsupportedAdapter, match=says):
        read_adapter("sum", directory)


def test_an_adapter_saved_as_a_pickle_is_not_opened(tmp_path: Path) -> None:
    directory = save(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(UnsupportedAdapter, match=r"adapter_model\.safetensors cannot be read"):
        read_adapter("sum", directory)


def test_an_adapter_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAdapter, match="has no weights"):
        read_adapter("sum", save(tmp_path, {}))
