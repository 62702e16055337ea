"""Adapters in the engine: each request has the text of the model that its adapter is merged into."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift_engine import Completion, Engine, Request, SamplingParams
from nightshift_engine.core.config import AdapterPath, EngineConfig
from nightshift_engine.errors import IncompatibleState, InvalidConfig, UnknownAdapter, UnsupportedAdapter
from nightshift_engine.execution.decoder.adapters.memory import AdapterMemory
from nightshift_engine.execution.decoder.adapters.native import add_adapters
from nightshift_engine.execution.linears.native import NativeLinear
from tests.unit.engine.tiny.adapters import merged, save_adapter
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    collect,
    complete,
    greedy,
    load_engine,
    make_cramped_engine,
    random_prompts,
    reference_greedy,
    run_to_end,
    save_model,
)

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
GEMMA2 = {"head_dim": 8, "query_pre_attn_scalar": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, odd sizes, biases": (
        "llama",
        {"hidden_size": 40, "intermediate_size": 50, "head_dim": 12, "attention_bias": True},
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral": ("mistral", {}),
    "phi3, one layer for all heads, one for gate and up": ("phi3", {}),
    "gemma2, norms behind": ("gemma2", GEMMA2),
    "granite, factors": ("granite", {"residual_multiplier": 0.22}),
    "gpt2, transposed weights, no gate": ("gpt2", GPT2),
    "gpt_neox, heads interleaved, in parallel": ("gpt_neox", {}),
}
PROMPTS = random_prompts(4)
SCALING = 6 / 4
NEW = 12


def base_of(directory: Path, family: str) -> Path:
    model_type, overrides = FAMILIES[family]
    without = ("intermediate_size", "num_key_value_heads") if model_type == "gpt2" else ()
    return save_model(directory, model_type, without=without, **overrides)


@pytest.fixture(scope="module")
def adapted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterPath, ...]:
    """Three adapters of the llama, one of them of queries and values alone."""
    folder = tmp_path_factory.mktemp("adapters")
    return (
        save_adapter(folder / "one", llama, seed=1),
        save_adapter(folder / "two", llama, seed=2),
        save_adapter(folder / "few", llama, seed=3, only=("q_proj", "v_proj")),
    )


@pytest.fixture(scope="module")
def answers(
    llama: Path, adapted: Sequence[AdapterPath], tmp_path_factory: pytest.TempPathFactory
) -> dict[str | None, list[list[int]]]:
    """The answers of transformers' `generate` to `PROMPTS`, by each merged model and by the base."""
    folder = tmp_path_factory.mktemp("merged")
    models = {adapter.name: merged(llama, adapter, SCALING, folder / adapter.name) for adapter in adapted}
    return {name: reference_greedy(model, PROMPTS, NEW) for name, model in ({None: llama} | models).items()}


def requests(names: Sequence[str | None], **fields: Any) -> list[Request]:
    """Every prompt with every adapter, the adapters in turn."""
    return [
        Request(f"{number} {name}", prompt, greedy(NEW), adapter=name, **fields)
        for number, prompt in enumerate(PROMPTS)
        for name in names
    ]


def texts(done: Sequence[Completion]) -> dict[str, list[int]]:
    return {completion.id: completion.token_ids for completion in done}


def wanted(answers: dict[str | None, list[list[int]]], names: Sequence[str | None]) -> dict[str, list[int]]:
    return {f"{number} {name}": answers[name][number] for number in range(len(PROMPTS)) for name in names}


@pytest.mark.parametrize(
    "family",
    mostly_exhaustive(
        FAMILIES,
        default=[
            "llama, odd sizes, biases",
            "qwen3",
            "phi3, one layer for all heads, one for gate and up",
            "gemma2, norms behind",
            "gpt2, transposed weights, no gate",
            "gpt_neox, heads interleaved, in parallel",
        ],
    ),
)
def test_the_text_is_that_of_the_merged_model_beside_others_and_the_base(family: str, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", family)
    adapters = [save_adapter(tmp_path / name, base, seed=seed) for seed, name in enumerate(["one", "two"])]
    models: dict[str | None, Path] = {None: base}
    for adapter in adapters:
        models[adapter.name] = merged(base, adapter, SCALING, tmp_path / f"merged-{adapter.name}")
    reference = {name: reference_greedy(model, PROMPTS, NEW) for name, model in models.items()}
    assert len({str(answer) for answer in reference.values()}) == 3, "an adapter changes nothing"

    engine = load_engine(base, dtype="float32", adapters=tuple(adapters))
    done = complete(engine, *requests([None, "one", "two"]))

    assert texts(done) == wanted(reference, [None, "one", "two"])


@pytest.mark.parametrize("cramped", [False, True], ids=["roomy", "preempted"])
@pytest.mark.parametrize("max_loras", [1, 2, 3])
def test_more_adapters_than_slots_take_turns_and_all_come_out_right(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any, max_loras: int, cramped: bool
) -> None:
    settings: dict[str, Any] = {"adapters": adapted, "max_loras": max_loras, "dtype": "float32"}
    if cramped:
        settings |= {"num_kv_blocks": 14, "max_num_batched_tokens": 8}
    engine = (make_cramped_engine if cramped else load_engine)(llama, **settings)
    names = ["one", None, "two", "few"]

    done = complete(engine, *requests(names, group="job"))

    assert texts(done) == wanted(answers, names)
    assert not cramped or engine.stats().preemptions > 0


def test_nothing_is_reused_across_adapters_and_all_within_one(
    llama: Path, adapted: tuple[AdapterPath, ...]
) -> None:
    engine = load_engine(llama, adapters=adapted)
    prompt = list(range(40, 61))

    cached = [
        complete(engine, Request(f"{number}", prompt, greedy(2), adapter=name))[0].num_cached_tokens
        for number, name in enumerate(["one", None, "two", "one", None])
    ]

    assert cached == [0, 0, 0, 20, 20]


def test_an_unfinished_request_continues_exactly_and_not_with_another_adapter(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any
) -> None:
    engine = load_engine(llama, adapters=adapted)
    begun = answers["one"][0][:5]
    request = Request("0", PROMPTS[0], greedy(NEW), adapter="one", output_token_ids=begun)

    assert complete(engine, request)[0].token_ids == answers["one"][0]

    one, two = (engine.made_by.with_adapter(name, engine.limits.adapters[name]) for name in ("one", "two"))
    assert one.accepts(one)
    for other in (two, engine.made_by):
        with pytest.raises(IncompatibleState, match="model"):
            one.accepts(other)


def test_the_base_computes_the_same_bits_whatever_adapters_run_beside_it(
    llama: Path, adapted: tuple[AdapterPath, ...]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=3)
    bases = [Request(f"{n}", prompt, params) for n, prompt in enumerate(PROMPTS)]
    alone = complete(load_engine(llama, deterministic=True), *bases)
    beside = load_engine(llama, deterministic=True, adapters=adapted)

    together = complete(beside, *bases, *requests(["one", "two", "few"]))

    assert [done.logprobs for done in together[: len(bases)]] == [done.logprobs for done in alone]


def test_a_row_with_an_adapter_has_the_same_bits_in_any_company(
    llama: Path, adapted: tuple[AdapterPath, ...]
) -> None:
    engine = load_engine(llama, deterministic=True, adapters=adapted, enable_prefix_reuse=False)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=3)
    one = Request("probe", PROMPTS[0], params, adapter="one")
    [alone] = complete(engine, one)

    beside, *_ = complete(engine, one, *requests(["one", "two", None]))

    assert beside.logprobs == alone.logprobs


def test_a_batch_without_adapters_makes_the_calls_of_an_engine_without_them(
    llama: Path, adapted: tuple[AdapterPath, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_engine(llama, adapters=adapted)
    complete(engine, Request("with", PROMPTS[0], greedy(2), adapter="one"))  # it stays in its slot
    monkeypatch.setattr("nightshift_engine.execution.decoder.native_operations.add_adapters", None)

    complete(engine, *requests([None]))
    with pytest.raises(TypeError):
        complete(engine, Request("again", PROMPTS[0], greedy(2), adapter="one"))


def test_steps_that_decode_with_adapters_are_written_down_until_other_adapters_are_loaded(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls = load_engine(llama, dtype="float32", adapters=adapted[:2], max_loras=1), list[int]()

    def counted(x: torch.Tensor, *rest: Any) -> None:
        calls.append(len(x))
        add_adapters(x, *rest)

    monkeypatch.setattr("nightshift_engine.execution.decoder.native_operations.add_adapters", counted)
    for name in ("one", "two"):
        calls.clear()
        done = complete(engine, *requests([name]))
        assert texts(done) == wanted(answers, [name])
        assert len(calls) < 4 * 2 * 5, "more than the steps with prompts, and one that decodes"


def test_files_that_went_away_end_the_requests_that_need_them_by_name(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any, tmp_path: Path
) -> None:
    gone = AdapterPath("gone", str(shutil.copytree(adapted[1].path, tmp_path / "gone")))
    engine = load_engine(llama, adapters=(adapted[0], gone), max_loras=1)
    shutil.move(tmp_path / "gone", tmp_path / "elsewhere")

    done = complete(engine, *requests(["gone", "one", None]))

    failed = [completion for completion in done if "gone" in completion.id]
    assert {completion.finish_reason for completion in failed} == {"abort"}
    assert {completion.error for completion in failed} == {
        "adapter 'gone' cannot be used: adapter_config.json cannot be read: No such file or directory"
    }
    rest = [completion for completion in done if "gone" not in completion.id]
    assert texts(rest) == wanted(answers, ["one", None])

    shutil.move(tmp_path / "elsewhere", tmp_path / "gone")
    [back] = complete(engine, Request("0 two", PROMPTS[0], greedy(NEW), adapter="gone"))
    assert back.token_ids == answers["two"][0]


def test_a_step_that_fails_while_it_loads_adapters_leaves_none_of_them_with_others_numbers(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_engine(llama, dtype="float32", adapters=adapted)
    names, fails = ["one", "two", "few"], [False, True, True]
    put = AdapterMemory.put

    def sometimes(memory: AdapterMemory, slot: int, adapter: Any) -> None:
        if fails and fails.pop(0):
            raise MemoryError
        put(memory, slot, adapter)

    monkeypatch.setattr(AdapterMemory, "put", sometimes)
    for request in requests(names):
        engine.add(request)
    for _ in range(2):
        with pytest.raises(MemoryError):
            engine.step()

    assert {id: done.token_ids for id, done in run_to_end(engine).items()} == wanted(answers, names)


def test_files_that_changed_are_not_served_under_the_old_name(llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "sum", llama, seed=1)
    engine = load_engine(llama, adapters=(adapter,))
    save_adapter(tmp_path / "sum", llama, seed=2)

    [done] = complete(engine, Request("0", PROMPTS[0], greedy(NEW), adapter="sum"))

    assert done.error is not None
    assert "its files have changed" in done.error


def test_an_adapter_in_use_keeps_its_slot_until_a_more_urgent_request_needs_it(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any
) -> None:
    engine = load_engine(llama, adapters=adapted, max_loras=1)
    completions: dict[str, Completion] = {}
    for request in requests(["one"], priority="background"):
        engine.add(request)
    collect(completions, engine.step())
    engine.add(Request("standard", PROMPTS[0], greedy(1), adapter="two", priority="background"))
    collect(completions, engine.step())
    assert "standard" not in completions, "it took the slot of one that runs"
    engine.add(Request("urgent", PROMPTS[1], greedy(NEW), adapter="two", priority="interactive"))
    for _ in range(NEW):
        collect(completions, engine.step())

    assert completions["urgent"].token_ids == answers["two"][1]
    for id, done in run_to_end(engine).items():
        completions.setdefault(id, Completion(id)).token_ids.extend(done.token_ids)
    assert {id: done.token_ids for id, done in completions.items() if "one" in id} == wanted(answers, ["one"])
    assert completions["standard"].token_ids == answers["two"][0][:1]


def test_an_unknown_adapter_is_refused(llama: Path, adapted: tuple[AdapterPath, ...]) -> None:
    engine = load_engine(llama, adapters=adapted[:1])
    with pytest.raises(UnknownAdapter, match="has no adapter 'two'"):
        engine.add(Request("0", [1], adapter="two"))
    assert not engine.has_work


def test_bfloat16_is_near_the_merged_model(
    llama: Path, adapted: tuple[AdapterPath, ...], tmp_path: Path
) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    engine = load_engine(llama, dtype="bfloat16", adapters=adapted)
    model = load_engine(merged(llama, adapted[0], SCALING, tmp_path / "merged"), dtype="float32")
    for number, prompt in enumerate(PROMPTS):
        [ours] = complete(engine, Request(f"{number}", prompt, params, adapter="one"))
        [theirs] = complete(model, Request(f"{number}", prompt, params))
        assert ours.logprobs[0].top_logprobs == pytest.approx(theirs.logprobs[0].top_logprobs, abs=0.5)


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"tensor_parallel_size": 2}, "tensor_parallel_size"), ({"weight_dtype": "int8"}, "weight_dtype")],
)
def test_narrow_weights_and_several_devices_are_refused_with_adapters(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"{field} must be .* with adapters"):
        EngineConfig("m", adapters=(AdapterPath("a", "b"),), **settings)


def test_a_base_that_runs_through_its_own_modules_is_refused(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", "llama")
    adapter = save_adapter(tmp_path / "sum", base)
    with pytest.raises(UnsupportedAdapter, match=r"'sum' .*transformers' own modules"):
        load_engine(base, dtype="float16", adapters=(adapter,))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"model.layers.0.mlp.up_proj.lora_B": (7, 4)}, "up_proj is .48, 32. .*for .7, 32.: another base"),
        ({"model.layers.9.mlp.up_proj.lora_A": (4, 32), "model.layers.9.mlp.up_proj.lora_B": (48, 4)},
         "has no linear layer model.layers.9.mlp.up_proj"),
        ({"lm_head.lora_A": (4, 32), "lm_head.lora_B": (258, 4)}, "has no linear layer lm_head"),
    ],
    ids=["shape", "depth", "head"],
)  # fmt: skip
def test_an_adapter_for_another_base_is_refused_by_name(
    llama: Path, tmp_path: Path, tensors: dict[str, tuple[int, ...]], says: str
) -> None:
    change = {f"base_model.model.{name}.weight": torch.zeros(shape) for name, shape in tensors.items()}
    adapter = save_adapter(tmp_path / "sum", llama, change=change)
    with pytest.raises(UnsupportedAdapter, match=f"adapter 'sum' cannot be used: .*{says}"):
        load_engine(llama, adapters=(adapter,))


def test_weights_missing_for_a_module_that_is_named_are_refused(llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "sum", llama, only=("q_proj",), target_modules=["q_proj", "v_proj"])
    with pytest.raises(UnsupportedAdapter, match=r"target_modules names model\.layers\.0\.self_attn\.v_proj"):
        load_engine(llama, adapters=(adapter,))


def test_engines_keep_adapters_apart_from_one_another(
    llama: Path, adapted: tuple[AdapterPath, ...], answers: Any
) -> None:
    engines: list[Engine] = [load_engine(llama, adapters=adapted[:1]), load_engine(llama)]
    done = [complete(engine, Request("0", PROMPTS[0], greedy(NEW)))[0].token_ids for engine in engines]
    assert done == [answers[None][0]] * 2
