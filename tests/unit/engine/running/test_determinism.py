"""Deterministic mode: a request's tokens and logits are bits that nothing around it can change.

Each request is run alone once. Then the same requests run through random schedules: other batches, chunks and
arrivals, KV memory so small that sequences are preempted, prefixes found or not, one thread or two, and a
move to another engine in the middle.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift_engine import Completion, Engine, Request, SamplingParams
from nightshift_engine.errors import InvalidConfig, UnsupportedModel
from nightshift_engine.execution.linears.native import NativeLinear
from tests.unit.engine.running.carrying import resumed, save
from tests.unit.engine.running.guessing import with_guesses
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    VOCAB_SIZE,
    collect,
    load_engine,
    make_engine,
    save_model,
)

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"hidden_size": 80, "intermediate_size": 200, "head_dim": 20, "num_hidden_layers": 3}),
    "qwen3": ("qwen3", {"hidden_size": 64, "head_dim": 32}),
    "mistral, window": ("mistral", {"sliding_window": 24}),
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gemma2, window": ("gemma2", {"head_dim": 24, "sliding_window": 24}),
    "olmo2": ("olmo2", {}),
    "gpt_neox": ("gpt_neox", {}),
    "cohere": ("cohere", {"use_qk_norm": True}),
    "qwen2_moe": (
        "qwen2_moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
}
NUM_REQUESTS = 12
SCHEDULES = int(os.environ.get("SCHEDULES", "2"))

Completions = dict[str, Completion]
Bits = dict[str, dict[int, bytes]]
"""Per request: the logits of each output token, by its index."""


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module", params=mostly_exhaustive(MODELS, default=["llama", "gemma2, window", "qwen2_moe"])
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_type, overrides = MODELS[request.param]
    without = ("intermediate_size", "num_key_value_heads") if model_type == "gpt2" else ()
    return save_model(tmp_path_factory.mktemp("model"), model_type, without=without, **overrides)


def make(checkpoint: Path, **overrides: Any) -> Engine:
    settings = {"num_kv_blocks": 64, "block_size": 8, "deterministic": True} | overrides
    return make_engine(checkpoint, **settings)


def load(checkpoint: Path, **overrides: Any) -> Engine:
    return load_engine(checkpoint, deterministic=True, **overrides)


def requests(seed: int) -> list[Request]:
    """Prompts of many lengths, some of which begin alike; greedy, and drawn with seeds."""
    chance = random.Random(seed)
    common = [chance.randrange(VOCAB_SIZE) for _ in range(30)]
    made = []
    for number in range(NUM_REQUESTS):
        own = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(1, 40))]
        prompt = common[: chance.randrange(31)] + own
        temperature = chance.choice([0.0, 0.8])
        sampling = SamplingParams(
            temperature=temperature,
            top_p=0.95,
            seed=chance.randrange(2**32),
            max_tokens=chance.randrange(1, 40),
            ignore_eos=True,
            frequency_penalty=chance.choice([0.0, 0.4]),
        )
        made.append(Request(f"r{number}", prompt, sampling))
    return made


class Recorder:
    """Notes the logits every sampled token was chosen from, before sampling touches them."""

    def __init__(self, engine: Engine, bits: Bits) -> None:
        self._runner, self._bits = engine._runner, bits
        engine._runner = self

    def forward(self, chunks: Any, tokens_in_flight: Any = None) -> torch.Tensor:
        logits = self._runner.forward(chunks, tokens_in_flight)
        last = [chunk for chunk in chunks if chunk.is_last]
        sampled = [(chunk.sequence.id, row) for chunk in last for row in (chunk.sequence, *chunk.draft)]
        for (id, row), of_row in zip(sampled, logits, strict=True):
            # Behind a drafted token that is not accepted, the row comes again.
            self._bits.setdefault(id, {})[row.next_output_index] = of_row.numpy().tobytes()
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def alone(checkpoint: Path, wanted: list[Request]) -> tuple[Completions, Bits]:
    """Every request by itself, in one piece, on one thread."""
    torch.set_num_threads(1)
    completions: Completions = {}
    bits: Bits = {}
    engine = make(checkpoint, enable_prefix_reuse=False)
    Recorder(engine, bits)
    for request in wanted:
        engine.add(request)
        while engine.has_work:
            collect(completions, engine.step())
    return completions, bits


def scheduled(
    checkpoint: Path, wanted: list[Request], chance: random.Random, answers: Completions
) -> tuple[Completions, Bits]:
    """All requests through one random schedule, in some of which tokens are drafted."""
    torch.set_num_threads(chance.choice([1, 2, 7]))  # of seven some always stand still
    guesses = {id: answer.token_ids for id, answer in answers.items()} if chance.random() < 0.7 else {}
    bits: Bits = {}
    completions: Completions = {}

    def engine_of_any_size() -> Engine:
        engine = make(
            checkpoint,
            block_size=chance.choice([4, 8, 32]),
            num_kv_blocks=chance.choice([32, 64]),
            max_num_seqs=chance.choice([1, 2, 5, 12]),
            max_num_batched_tokens=chance.choice([3, 7, 16, 200]),
            enable_prefix_reuse=chance.random() < 0.7,
        )
        Recorder(engine, bits)
        return with_guesses(engine, guesses, chance) if guesses else engine

    engine, arriving = engine_of_any_size(), chance.sample(wanted, len(wanted))
    while arriving or engine.has_work:
        if arriving and (not engine.has_work or chance.random() < 0.4):
            engine.add(arriving.pop())
        if chance.random() < 0.02:  # the machine goes away
            inside = [request for request in wanted if request not in arriving]
            saved = save(engine, inside, completions)
            engine = engine_of_any_size()
            moved = resumed(engine, inside, saved)
            for request in chance.sample(moved, len(moved)):
                completions.pop(request.id, None)  # its first output repeats them
                engine.add(request)
        collect(completions, engine.step())
    return completions, bits


def test_tokens_and_logits_are_bitwise_the_same_in_every_schedule(checkpoint: Path) -> None:
    seed = int(os.environ.get("SEED", "0"))
    wanted = requests(seed)
    expected, bits = alone(checkpoint, wanted)
    for schedule in range(SCHEDULES):
        print(f"seed {seed}, schedule {schedule}")
        got, got_bits = scheduled(checkpoint, wanted, random.Random(f"{seed} {schedule}"), expected)
        for request in wanted:
            assert got[request.id].token_ids == expected[request.id].token_ids
            assert got_bits[request.id] == bits[request.id], f"logits of {request.id} differ"


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"dtype": "bfloat16"}, "dtype"),
        ({"weight_dtype": "int8"}, "weight_dtype"),
        ({"attention_backend": "torch"}, "attention_backend"),
    ],
)
def test_what_cannot_be_deterministic_is_refused_by_name(
    llama: Path, overrides: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfig, match=field):
        load(llama, **overrides)


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [("phimoe", {"num_local_experts": 4}), ("opt", {"do_layer_norm_before": False})],
)
def test_a_model_that_runs_through_torchs_own_arithmetic_is_refused(
    model_type: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match="plain decoders only, and its"):
        load(save_model(tmp_path, model_type, **overrides))


def test_without_native_kernels_it_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")
    with pytest.raises(InvalidConfig, match=r"native kernels.*g\+\+"):
        load(llama)
