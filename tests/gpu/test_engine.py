"""The engine on a device: the same tokens with graphs and overlap as without, and as `generate`."""

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from safetensors.torch import load_file

from benchmarks.device.checks import check_bfloat16, check_greedy
from nightshift_engine import Engine, Request
from nightshift_engine.checkpoint.stored_tensors import WHOLE
from nightshift_engine.execution.attention.selection import FP8_CAPABILITY_MIN
from nightshift_engine.execution.decoder.decoder import Decoder
from nightshift_engine.execution.kv_memory import QUANTISED_DTYPES
from nightshift_engine.execution.linears.dense import writes_float32
from nightshift_engine.loading.weights import load_pretrained
from nightshift_engine.models import load_model
from tests.unit.engine.execution.test_kv_dtypes import PROMPT, RELATIVE_ERROR_MAX, logits
from tests.unit.engine.running.guessing import with_guesses
from tests.unit.engine.running.test_overlap import CRAMPED, random_request, result
from tests.unit.engine.running.test_prompt_logprobs import assert_close, reference, run, scores, scoring
from tests.unit.engine.running.test_thoughts import said, thinking_requests
from tests.unit.engine.tiny.adapters import merged, save_adapter
from tests.unit.engine.tiny.decoders import (
    complete,
    engine_config,
    greedy,
    load_engine,
    random_prompts,
    reference_greedy,
    save_model,
)
from tests.unit.engine.tiny.thinking import END, save_thinking

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


def on_device(directory: Path, **settings: Any) -> Engine:
    return load_engine(directory, **({"device": "cuda", "dtype": "float32"} | settings))


def test_greedy_tokens_are_those_of_generate() -> None:
    check = check_greedy(torch.device("cuda"))
    assert check.holds, check


def test_bfloat16_is_no_further_off_than_in_transformers() -> None:
    check = check_bfloat16(torch.device("cuda"))
    assert check.holds, check


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("overlap_steps", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_graphs_and_overlap_change_no_answer(
    llama: Path, cuda_graphs: bool, overlap_steps: bool, seed: int
) -> None:
    print(f"{seed=}")
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(16)]
    plain = on_device(llama, attention_backend="torch", overlap_steps=False)
    wanted = [result(completion) for completion in complete(plain, *requests)]

    engine = on_device(llama, cuda_graphs=cuda_graphs, overlap_steps=overlap_steps, **CRAMPED)

    assert [result(completion) for completion in complete(engine, *requests)] == wanted


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_thoughts_end_at_their_budgets_with_graphs_and_steps_in_flight(
    tmp_path: Path, overlap_steps: bool
) -> None:
    thinker, requests = save_thinking(tmp_path), thinking_requests()
    plain = on_device(thinker, attention_backend="torch", cuda_graphs=False, overlap_steps=False)
    wanted = [(said(completion), completion.token_ids) for completion in complete(plain, *requests)]

    engine = on_device(thinker, overlap_steps=overlap_steps, **CRAMPED)

    assert [(said(done), done.token_ids) for done in complete(engine, *requests)] == wanted
    assert all(END in token_ids[:9] for _, token_ids in wanted)


@pytest.mark.parametrize("seed", [1, 2])
def test_drafted_tokens_change_no_answer_and_are_replayed_from_graphs(llama: Path, seed: int) -> None:
    print(f"{seed=}")
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(16)]
    plain = complete(on_device(llama, attention_backend="torch", overlap_steps=False), *requests)
    guesses = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}

    engine = with_guesses(on_device(llama, max_num_seqs=40), guesses, random.Random(seed))

    assert [result(answer) for answer in complete(engine, *requests)] == [result(answer) for answer in plain]
    assert engine.stats().num_accepted_tokens > 0
    assert not any(engine.stats().eager_steps.values())


@pytest.mark.parametrize("kv_dtype", QUANTISED_DTYPES)
def test_kv_in_eight_bits_moves_logits_a_little(llama: Path, kv_dtype: torch.dtype) -> None:
    _skip_without(kv_dtype)
    cuda = torch.device("cuda")
    exact = logits(llama, "triton", torch.float32, cuda)

    error = (logits(llama, "triton", kv_dtype, cuda) - exact).square().mean().sqrt() / exact.std()

    print(f"{error=}")
    assert 0 < error < RELATIVE_ERROR_MAX[kv_dtype]


def test_an_engine_with_fp8_kv_completes_through_graphs(llama: Path) -> None:
    _skip_without(torch.float8_e4m3fn)
    engine = on_device(llama, kv_cache_dtype="fp8", max_num_seqs=8)

    [first] = complete(engine, Request("1", PROMPT, greedy(30)))
    [again] = complete(engine, Request("2", PROMPT, greedy(30)))

    assert len(first.token_ids) == len(again.token_ids) == 30
    assert again.num_cached_tokens > 0
    assert (engine.made_by.attention_backend, engine.made_by.kv_cache_dtype) == ("triton", "float8_e4m3fn")


def _skip_without(kv_dtype: torch.dtype) -> None:
    if kv_dtype == torch.float8_e4m3fn and torch.cuda.get_device_capability() < FP8_CAPABILITY_MIN:
        pytest.skip("this device does not convert fp8")


def test_a_llama_can_be_recorded(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="nightshift_engine"):
        on_device(llama, max_num_seqs=8, max_num_batched_tokens=100)

    # 1, 2, 4 and 8 that decode; 64 and 100 tokens with prompts.
    wanted = "6 of 6 sizes of steps recorded as CUDA graphs"
    assert wanted in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_nothing_compiles_after_loading_and_no_step_is_eager_without_a_reason(
    tmp_path: Path, cuda_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    context = {"max_position_embeddings": 1024}
    engine = on_device(save_model(tmp_path, **context), cuda_graphs=cuda_graphs, max_num_batched_tokens=200)
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda *, repr, **_: compiled.append(repr)
    )

    complete(
        engine,
        Request("long", [7] * 900, greedy(60)),
        *(Request(str(n), [n + 1] * (1 + 13 * n), greedy(5 + n)) for n in range(30)),
    )

    stats = engine.stats()
    assert compiled == []
    assert stats.eager_steps["turned_off"] == (0 if cuda_graphs else stats.steps)
    assert sum(stats.eager_steps.values()) == stats.eager_steps["turned_off"]


def test_weights_on_the_device_are_those_of_the_files(llama: Path) -> None:
    model = load_pretrained(engine_config(llama, device="cuda", dtype="float32"), torch.device("cuda"))

    weights = dict(model.named_parameters())
    assert {weight.device.type for weight in weights.values()} == {"cuda"}
    for name, stored in load_file(llama / WHOLE).items():
        assert torch.equal(weights[name].cpu(), stored), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_llama_is_written_out(llama: Path, dtype: str) -> None:
    config = engine_config(llama, device="cuda", dtype=dtype)
    model = load_model(config)
    assert isinstance(model.forward_pass, Decoder)
    assert not model.forward_pass.has_modules


def test_products_of_bfloat16_are_written_as_float32() -> None:
    """Else every one is rounded, and copied or added by a kernel of its own."""
    assert writes_float32(torch.device("cuda"), torch.bfloat16)


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_prompts_are_scored_as_by_transformers_beside_others_and_without_graphs(
    llama: Path, overlap_steps: bool
) -> None:
    engine, prompts = on_device(llama, overlap_steps=overlap_steps), random_prompts(4)
    others = [Request(f"other{n}", [n, 7], greedy(30)) for n in range(4)]
    last = run(engine, *others, *(scoring(str(n), prompt) for n, prompt in enumerate(prompts)))

    for number, prompt in enumerate(prompts):
        assert_close(scores(last[str(number)]), reference(llama, prompt), prompt)
    assert engine.stats().eager_steps["prompt_logprobs"] > 0


def test_adapters_in_one_batch_have_the_text_of_their_merged_models(
    llama: Path, tmp_path: Path, overlap_steps: bool
) -> None:
    """More of them than slots, so that some are loaded while a step that reads another is in flight."""
    adapters = tuple(save_adapter(tmp_path / f"{seed}", llama, seed=seed) for seed in range(3))
    prompts = random_prompts(6)
    models = {
        adapter.name: merged(llama, adapter, 6 / 4, tmp_path / f"m{adapter.name}") for adapter in adapters
    }
    wanted = {name: reference_greedy(model, prompts, 16) for name, model in ({None: llama} | models).items()}
    engine = on_device(llama, adapters=adapters, max_loras=2, overlap_steps=overlap_steps)

    done = complete(
        engine,
        *(
            Request(f"{number} {name}", prompt, greedy(16), adapter=name)
            for number, prompt in enumerate(prompts)
            for name in wanted
        ),
    )

    assert [completion.token_ids for completion in done] == [
        wanted[name][number] for number in range(len(prompts)) for name in wanted
    ]
    assert engine.stats().eager_steps["adapters"] > 0
