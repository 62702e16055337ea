"""Nothing compiles after a model is loaded: a run launches no variant of a kernel that loading did not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu counts what a device compiles")

from nightshift_engine import Engine, EngineConfig, Request, SamplingParams  # noqa: E402
from nightshift_engine.execution.attention.interface import AttentionStep  # noqa: E402
from nightshift_engine.execution.decoder.decoder import Decoder  # noqa: E402
from nightshift_engine.execution.decoder.pack import read_decoder  # noqa: E402
from nightshift_engine.execution.decoder.triton_operations import TritonOperations  # noqa: E402
from nightshift_engine.execution.forward_pass import ForwardPass, ModulePass  # noqa: E402
from nightshift_engine.execution.linears.dense import dense_packing  # noqa: E402
from nightshift_engine.execution.step_layout import StepInputs  # noqa: E402
from nightshift_engine.loading.model import LoadedModel, load_model  # noqa: E402
from nightshift_engine.loading.selftest import check_model  # noqa: E402
from tests.unit.engine.kernels.triton.compiled_variants import (  # noqa: E402
    NOT_SPECIALISED,
    launched_kernels,
    record_variants,
)
from tests.unit.engine.tiny.cases import mostly_exhaustive  # noqa: E402
from tests.unit.engine.tiny.decoders import run_to_end, save_model  # noqa: E402

CPU = torch.device("cpu")
CONTEXT, BLOCK_SIZE = 1024, 16

WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "num_hidden_layers": 1,
}
ODD = {"hidden_size": 60, "head_dim": 20, "num_attention_heads": 3, "num_key_value_heads": 1}
WINDOWED = WIDE | {
    "num_hidden_layers": 2,
    "query_pre_attn_scalar": 16,
    "sliding_window": 48,
    "layer_types": ["sliding_attention", "full_attention"],
}
SINKS = WIDE | {
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 48,
    "layer_types": ["sliding_attention", "full_attention"],
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its KV and the way through it."""

    family: str
    overrides: dict[str, Any]
    kv_dtype: torch.dtype = torch.bfloat16
    by_modules: bool = False


CASES = {
    "llama": Case("llama", WIDE),
    "llama, odd heads": Case("llama", WIDE | ODD),
    "its own modules": Case("llama", WIDE, by_modules=True),
    "norms of heads, fp8 KV": Case("qwen3", WIDE, kv_dtype=torch.float8_e4m3fn),
    "windows, softcap, int8 KV": Case("gemma2", WINDOWED, kv_dtype=torch.int8),
    "sinks, experts": Case("gpt_oss", SINKS),
}


class RandomLogits:
    """A forward pass that launches what it launches, and makes up its logits."""

    def __init__(self, inner: ForwardPass) -> None:
        self._inner, self._generator = inner, torch.Generator().manual_seed(1)

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        return torch.randn(self._inner(inputs, attention).shape, generator=self._generator)


def loaded(case: Case, directory: Path, **settings: Any) -> LoadedModel:
    """The model as it is loaded for CUDA, but on the CPU."""
    save_model(directory, case.family, **case.overrides)
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    calls = check_model(model, case.family).calls
    model = model.bfloat16()
    forward_pass: ForwardPass = ModulePass(model)
    if not case.by_modules:
        operations = TritonOperations(torch.bfloat16, CPU)
        forward_pass = read_decoder(model, calls, dense_packing(), torch.bfloat16, operations=operations)
        assert isinstance(forward_pass, Decoder)
    config = EngineConfig(
        str(directory), device="cpu", attention_backend="torch", block_size=BLOCK_SIZE, **settings
    )
    return replace(
        load_model(config),
        forward_pass=RandomLogits(forward_pass),
        dtype=torch.bfloat16,
        kv_dtype=case.kv_dtype,
        attention="triton",
    )


def not_recorded(model: LoadedModel) -> Engine:
    """An engine as it is loaded with `cuda_graphs=False`."""
    return Engine.over(model)


def recorded(model: LoadedModel) -> Engine:
    """An engine as it is loaded on CUDA; each recording is made by running, and replayed by running again."""
    engine, config = Engine.over(model), model.config
    runner: Any = engine._runner
    runner.record_graphs(
        lambda function, *, warms_up: function() or function,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        context_length=CONTEXT,
        vocab_size=model.facts.vocab_size,
    )
    return engine


def run(engine: Engine) -> None:
    """Alone, together, in chunks, up to the longest context: every width of tables and number of rows."""
    generator = random.Random(5)

    def request(name: str, prompt: int, tokens: int) -> Request:
        sampling = replace(generator.choice(SAMPLING), max_tokens=tokens, ignore_eos=True)
        return Request(name, [generator.randrange(250) for _ in range(prompt)], sampling)

    engine.add(request("long", CONTEXT - 40, 40))
    engine.add(request("growing", 1, 150))
    for number in range(40):
        engine.add(request(str(number), generator.randint(1, 90), generator.randint(1, 30)))
    run_to_end(engine)
    assert engine.stats().preemptions == 0
    for number in range(4):  # each alone
        engine.add(request(f"alone {number}", 1 + 15 * number, 3))
        run_to_end(engine)


SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.2, logprobs=2),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=20),
)
LIMITS = {"max_num_seqs": 12, "max_num_batched_tokens": 100, "num_kv_blocks": 600}


@pytest.mark.parametrize("load", [not_recorded, recorded])
@pytest.mark.parametrize(
    "name", mostly_exhaustive(CASES, default=["its own modules", "windows, softcap, int8 KV"])
)
def test_a_run_launches_no_variant_that_loading_did_not(
    name: str, load: Callable[[LoadedModel], Engine], tmp_path: Path
) -> None:
    model = loaded(CASES[name], tmp_path, **LIMITS)
    with record_variants() as variants:
        engine = load(model)
        at_load = set(variants)
        run(engine)

        assert {kernel for kernel, _ in at_load} >= {
            "_attend_chunk",
            "_attend_splits",
            "_merge_splits",
            "_write_rows",
        }
        assert variants - at_load == set()


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(CASES["windows, softcap, int8 KV"], tmp_path_factory.mktemp("windowed"), **LIMITS)


DECLARED = [
    (name, argument)
    for _, name, kernel in launched_kernels()
    for declaration in NOT_SPECIALISED
    for argument in kernel.kwargs[declaration] or ()
    if name != "_multiply"  # of narrow weights, which none of these models has
]


@pytest.mark.parametrize(
    ("kernel", "argument"),
    mostly_exhaustive(DECLARED, default=[("_attend_chunk", "stride_table"), ("_write_rows", "num_tokens")]),
)
def test_a_forgotten_declaration_makes_more_variants(
    windowed: LoadedModel, kernel: str, argument: str
) -> None:
    """Or it is not needed, or the test above does not see what it is for."""
    counts = []
    for forgotten in (None, (kernel, argument)):
        with record_variants(forgotten) as variants:
            run(not_recorded(windowed))
        counts.append(len(variants))

    assert counts[1] > counts[0]
