"""A directory and a configuration become an engine, or a refusal that says why."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from nightshift_engine import Engine, EngineConfig, Request
from nightshift_engine.checkpoint.stored_tensors import WHOLE
from nightshift_engine.core.steps import SCORED_TOKENS_MAX
from nightshift_engine.errors import InvalidConfig, ModelLoadFailed
from nightshift_engine.loading.model import load_model
from nightshift_engine.loading.times import LoadTimes
from nightshift_engine.loading.weights import (
    eos_token_ids,
    model_id,
    move_weights,
    resolve_device,
    resolve_dtype,
)
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.decoders import (
    BASE,
    CONTEXT,
    VOCAB_SIZE,
    byte_tokenizer,
    complete,
    engine_config,
    greedy,
    load_engine,
    make_engine,
    save_model,
)


def test_the_engine_says_what_it_loaded(engine: Engine, llama: Path) -> None:
    assert engine.model_id == llama.name
    assert engine.context_length == CONTEXT
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_free, stats.blocks_total) == (0, 0, 256, 256)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "model.layers.1.self_attn.q_proj.weight",
            lambda weight: None,
            r"1 weights are missing: model.layers.1.self_attn.q_proj",
        ),
        (
            "lm_head.weight",
            lambda weight: weight[:, :-1].contiguous(),
            r"shape: lm_head.weight \(\[258, 31\], not \[258, 32\]\)",
        ),
    ],
    ids=["missing", "of another shape"],
)
def test_a_weight_that_is_not_whole_is_refused_by_name(
    tmp_path: Path, name: str, change: Any, reason: str
) -> None:
    """The rest would be random numbers, and the self-test compares a model only with itself."""
    directory = save_model(tmp_path / "model")
    weights = load_file(directory / "model.safetensors")
    weights[name] = change(weights[name])
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelLoadFailed, match=reason):
        load_engine(directory)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("config.json", '{"model_type": "llama", "num_attention_heads": "many"}'),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer.json", "{}"),
    ],
)
def test_files_that_say_nonsense_are_refused(tmp_path: Path, file: str, content: str) -> None:
    directory = save_model(tmp_path / "model")
    (directory / file).write_text(content)

    with pytest.raises(ModelLoadFailed, match="cannot load"):
        load_engine(directory)


def test_an_error_that_says_little_is_named(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    text = (directory / "config.json").read_text()
    (directory / "config.json").write_text(text.replace('"rope_type": "default"', '"rope_type": "llama3"'))

    with pytest.raises(ModelLoadFailed, match=r"KeyError.*rope_parameters"):
        load_engine(directory)


def test_an_end_of_sequence_the_model_cannot_say_does_not_end_the_engine(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "generation_config.json").write_text('{"eos_token_id": [256, 99999, -1]}')
    params = greedy(3, min_tokens=3, ignore_eos=False)

    [completion] = complete(load_engine(directory), Request("held open", [1, 2], params))

    assert len(completion.token_ids) == 3


def test_kv_memory_can_be_sized_in_bytes_or_left_to_the_engine(llama: Path) -> None:
    block_bytes = 2 * 4 * 2 * (8 + 8) * 4  # layers, tokens, KV heads, key and value dims, float32

    assert (
        make_engine(llama, num_kv_blocks=None, kv_cache_bytes=10 * block_bytes + 1).stats().blocks_total == 10
    )
    assert load_engine(llama, num_kv_blocks=None, max_num_seqs=3).stats().blocks_total == 3 * CONTEXT // 4
    with pytest.raises(
        InvalidConfig,
        match=r"KV memory of 1023 bytes does not hold one block of 1024 bytes; .* set num_kv_blocks",
    ):
        make_engine(llama, num_kv_blocks=None, kv_cache_bytes=block_bytes - 1)


@pytest.mark.parametrize("size", [{"num_kv_blocks": 2**40}, {"num_kv_blocks": None, "kv_cache_bytes": 2**70}])
def test_more_kv_memory_than_there_is_is_refused(llama: Path, size: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"no memory for \d+ KV blocks"):
        make_engine(llama, **size)


def test_kv_memory_leaves_room_for_the_largest_step(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where little memory is free, its share for KV would be more than activations and logits leave."""
    config = {"num_kv_blocks": None, "max_num_seqs": 64, "max_num_batched_tokens": 512}
    activations = 512 * (6 * 32 + 3 * 48) * 4
    logits = (5 * 64 + SCORED_TOKENS_MAX) * VOCAB_SIZE * 4
    block_bytes = 2 * 4 * 2 * (8 + 8) * 4
    free = activations + logits + 10 * block_bytes
    monkeypatch.setattr("nightshift_engine.execution.device.devices._available_cpu_bytes", lambda: free)

    assert load_engine(llama, **config).stats().blocks_total == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("interactive_step_budget_ms", 0),
        ("dtype", "int3"),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("num_kv_blocks", 0),
        ("model", ""),
        ("block_size", 1.5),
        ("block_size", "8"),
        ("max_num_seqs", float("inf")),
        ("max_num_batched_tokens", True),
        ("kv_cache_bytes", 1e9),
        ("max_model_len", "128"),
        ("interactive_step_budget_ms", float("nan")),
        ("interactive_step_budget_ms", "50"),
        ("deterministic", "no"),
        ("overlap_steps", 1),
        ("group_admissions", 1),
    ],
)
def test_a_senseless_configuration_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=field):
        EngineConfig(**({"model": "m"} | {field: value}))


def test_importing_the_boundary_costs_no_torch() -> None:
    modules = "nightshift_engine, nightshift_engine.errors, nightshift_engine.encoders"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


TOKENIZER = Tokenizer(byte_tokenizer())
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


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
    model = SimpleNamespace(generation_config=generation_config, config=AutoConfig.for_model("llama", **BASE))

    assert eos_token_ids(model, TOKENIZER) == expected


def test_a_models_id_is_its_hub_id_or_the_last_part_of_its_path(tmp_path: Path) -> None:
    assert model_id("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert model_id(str(tmp_path)) == tmp_path.name
    assert model_id(str(tmp_path) + "/") == tmp_path.name


def test_a_load_says_how_long_each_of_its_parts_took(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="nightshift_engine"):
        model = load_model(engine_config(llama))
        Engine.over(model)

    assert list(model.times.seconds) == [
        "tokenizer", "device", "checkpoint", "weights to the device", "kernels", "self-test",
        "device's limits", "packing", "second proof", "adapters", "memory given back", "KV memory",
    ]  # fmt: skip
    assert model.times.weight_bytes == 4 * sum(w.numel() for w in load_file(llama / WHOLE).values())
    [said] = [record.getMessage() for record in caplog.records if "took" in record.getMessage()]
    assert all(f"{part} {seconds:.2f} s" in said for part, seconds in model.times.seconds.items())


def test_a_part_that_runs_twice_has_both_times() -> None:
    times = LoadTimes()
    with times.part("checkpoint"):
        pass
    once = times.seconds["checkpoint"]
    with times.part("checkpoint"):
        pass

    assert times.seconds["checkpoint"] > once > 0


def test_weights_arrive_on_a_device_as_they_were_and_tied_ones_stay_one() -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **BASE, tie_word_embeddings=True))
    before = {name: weight.data for name, weight in model.named_parameters()}

    move_weights(model, torch.device("cpu", 0))  # which torch takes for another device than "cpu"

    moved = dict(model.named_parameters())
    assert [*moved] == [*before]
    assert all(moved[name].data_ptr() != weight.data_ptr() for name, weight in before.items())
    assert all(torch.equal(moved[name], weight) for name, weight in before.items())
    assert model.lm_head.weight is model.model.embed_tokens.weight
