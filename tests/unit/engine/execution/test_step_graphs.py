"""Steps through recorded graphs, with a stand-in for the recording: it replays by doing the same again.

What is left to a device is the recording itself. Sizes, buffers and rows that are not there are the same
everywhere; attention is our Triton kernels in the interpreter.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nightshift_engine import Engine, EngineConfig, Request
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.attention.selection import make_attention
from nightshift_engine.execution.graphs.buffers import StepBuffers
from nightshift_engine.execution.graphs.sizes import (
    StepSize,
    decode_sizes,
    graph_bytes,
    step_sizes,
    token_counts,
)
from nightshift_engine.execution.graphs.step_graphs import Capture
from nightshift_engine.execution.kv_memory import KvMemory, as_indexable, largest_step_bytes
from nightshift_engine.execution.model_runner import ModelRunner
from nightshift_engine.execution.step_layout import HostStep, lay_out
from nightshift_engine.loading import runner as runner_module
from nightshift_engine.loading.model import LoadedModel, load_model
from nightshift_engine.loading.times import LoadTimes
from tests.unit.engine.running.guessing import with_guesses
from tests.unit.engine.running.test_overlap import random_request, result
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import CONTEXT, VOCAB_SIZE, complete, greedy, make_engine, save_model

pytest.importorskip("triton")
from nightshift_engine.kernels.triton.decode import SplitParts
from nightshift_engine.kernels.triton.splits import split_tokens

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is not in use")

BLOCK_SIZE, NUM_BLOCKS = 4, 64
CPU = torch.device("cpu")
STEP_TOKENS = 24

# The interpreter is slow for each program of each layer.
SMALL = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1}
WINDOWED = SMALL | {
    "num_hidden_layers": 2,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
SINKS = SMALL | {
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}


class Replays:
    """Notes how often each recording is replayed."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, function: Callable[[], None], *, warms_up: bool) -> Callable[[], object]:
        number = len(self.counts)
        self.counts.append(0)

        def replay() -> None:
            self.counts[number] += 1
            function()

        return replay


class RunnerOf:
    """Runners over one model, each with memory of its own."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.config = EngineConfig(
            str(directory),
            device="cpu",
            dtype="float32",
            attention_backend="triton",
            block_size=BLOCK_SIZE,
            **settings,
        )
        self.model: LoadedModel = load_model(self.config)

    def eager(self, num_blocks: int = NUM_BLOCKS) -> ModelRunner:
        kv = KvMemory(
            self.model.shapes,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            dtype=self.model.kv_dtype,
            device=CPU,
            groups=self.model.groups,
        )
        return ModelRunner(self.model.forward_pass, kv, make_attention("triton", kv, CONTEXT), CPU)

    def recorded(self, capture: Capture, num_blocks: int = NUM_BLOCKS) -> ModelRunner:
        runner = self.eager(num_blocks)
        runner.record_graphs(
            capture,
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            context_length=CONTEXT,
            vocab_size=VOCAB_SIZE,
        )
        return runner


def engine_over(rig: RunnerOf, runner: ModelRunner) -> Engine:
    model, pool = rig.model, BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    windows = model.groups.windows
    return Engine(runner, model.tokenizer, model.facts, pool, rig.config, windows=windows)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"), **SMALL)


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 4]),
        (9, [1, 2, 4, 8, 16]),
        (16, [1, 2, 4, 8, 16]),
        (257, [1, 2, 4, *range(8, 257, 8), 272]),
    ],
)
def test_the_largest_size_holds_every_batch_and_none_is_recorded_in_vain(
    max_num_seqs: int, sizes: list[int]
) -> None:
    assert decode_sizes(max_num_seqs) == sizes


@pytest.mark.parametrize("limits", [(1, 1), (1, 16), (3, 100), (256, 8192), (128, 1024), (64, 48)])
def test_every_step_within_the_limits_is_held_and_from_256_tokens_on_filled_up_by_a_quarter_at_most(
    limits: tuple[int, int],
) -> None:
    max_num_seqs, max_num_batched_tokens = limits
    generator, sizes = random.Random(3), step_sizes(*limits)
    for _ in range(300):
        tokens = generator.randint(1, max_num_batched_tokens)
        decodes = generator.randint(0, min(tokens, max_num_seqs))
        chunks = 0
        if tokens - decodes >= 2 and decodes < max_num_seqs:
            chunks = generator.randint(1, min((tokens - decodes) // 2, max_num_seqs - decodes))
        if not chunks and decodes < tokens:
            continue
        step = a_step(decodes, chunks, tokens)

        size = next(size for size in sizes if size.holds(step))

        if chunks and chunks * 16 <= tokens and tokens >= 256:
            assert size.tokens <= 1.25 * tokens
        if not chunks and decodes > 8:
            assert size.tokens <= decodes + 15
    assert token_counts(max_num_batched_tokens)[-1] == max_num_batched_tokens
    assert len(sizes) <= 35 + 3 * 24


def a_sequence(name: int, num_known: int, num_computed: int, blocks: list[list[int]]) -> Sequence:
    """A sequence with these blocks in each group of layers."""
    token_ids = [(7 * name + 3 * place) % 250 for place in range(num_known)]
    request = Request(str(name), token_ids)
    sequence = Sequence(
        request, arrival=name, num_tokens_max=CONTEXT, num_groups=len(blocks), block_size=BLOCK_SIZE
    )
    sequence.num_computed_tokens = num_computed
    for group, of_group in enumerate(blocks):
        sequence.add_blocks(of_group, group)
    return sequence


def a_step(decodes: int, chunks: int, tokens: int) -> HostStep:
    """A step of so many sequences, each of which is sampled, as far as its size goes."""
    rows = np.zeros(tokens, dtype=np.int64)
    lengths = np.zeros(decodes + chunks, dtype=np.int32)
    return HostStep(
        cu_seqlens_q=lengths,
        seq_lens=lengths,
        block_tables=lengths[None, None],
        slot_mapping=rows[None],
        shared_tokens=lengths[None],
        positions=rows,
        input_ids=rows,
        logits_rows=rows[: decodes + chunks],
        promised_rows=rows[:0],
        promised_sources=rows[:0],
        num_decodes=decodes,
        max_query_len=tokens,
        max_seq_len=tokens,
    )


MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", SMALL, "auto"),
    "two groups of layers": ("gemma2", WINDOWED, "auto"),
    "sinks": ("gpt_oss", SINKS, "auto"),
    "int8 KV": ("llama", SMALL, "int8"),
    "fp8 KV": ("llama", SMALL, "fp8"),
}


@pytest.mark.parametrize("name", mostly_exhaustive(MODELS, default=["two groups of layers", "fp8 KV"]))
def test_random_steps_give_the_logits_of_single_kernels_and_write_no_kv_but_their_own(
    name: str, tmp_path: Path
) -> None:
    family, overrides, kv_dtype = MODELS[name]
    rig = RunnerOf(
        save_model(tmp_path, family, seed=5, **overrides),
        max_num_seqs=4,
        max_num_batched_tokens=STEP_TOKENS,
        kv_cache_dtype=kv_dtype,
    )
    replays = Replays()
    eager, recorded = rig.eager(), rig.recorded(replays)
    generator = random.Random(11)
    groups, free = len(rig.model.groups.windows), list(range(NUM_BLOCKS))
    generator.shuffle(free)
    sequences = [
        a_sequence(n, generator.randint(3, 7), 0, [[free.pop() for _ in range(5)] for _ in range(groups)])
        for n in range(4)
    ]
    poison(recorded.kv, free)
    for number in range(4):
        at_most = sequences[: generator.randint(2, 4)]
        chunks = []
        for sequence in at_most:
            left = sequence.num_uncomputed_tokens
            if left and sequence.num_tokens < 5 * BLOCK_SIZE - 1:
                chunks.append(Chunk(sequence, left if number % 2 else generator.randint(1, left)))
        if sum(chunk.num_tokens for chunk in chunks) > STEP_TOKENS:
            continue
        before = [tensor.clone() for tensor in tensors_of(recorded.kv)]

        logits = recorded.forward(chunks).clone()

        torch.testing.assert_close(logits, eager.forward(chunks), atol=2e-4, rtol=1e-3)
        assert_only_written(recorded.kv, before, chunks)
        for chunk in chunks:
            last = chunk.is_last
            chunk.sequence.num_computed_tokens += chunk.num_tokens
            if last:
                chunk.sequence.append(generator.randrange(250))
    assert sum(replays.counts) > 2
    assert not recorded.eager_steps


def test_what_decoding_rows_share_is_told_and_forgotten_with_them() -> None:
    size = StepSize(tokens=32, chunks=2, decodes=16, logits=16)
    buffers = StepBuffers([size], CONTEXT, BLOCK_SIZE, num_groups=1, device=CPU)
    chunks = [Chunk(a_sequence(n, 10, 9, [[5, 6, 10 + n]]), 1) for n in range(3)]
    prompt = Chunk(a_sequence(9, 10, 0, [[5, 6, 20]]), 4)
    for step_chunks, expected in (([*chunks, prompt], [0, 8, 8]), ([prompt, chunks[0]], [0])):
        buffers.fill(lay_out(step_chunks, BLOCK_SIZE, shares_prefixes=True), size, None)

        shared = buffers.inputs[size].layout.shared_tokens

        assert shared is not None
        assert shared.tolist() == expected + [0] * (16 - len(expected))


def tensors_of(kv: KvMemory) -> list[Tensor]:
    return [as_indexable(tensor) for layer in kv.layers.values() for tensor in layer.tensors]


def poison(kv: KvMemory, blocks: list[int]) -> None:
    """NaN in blocks that no sequence has: what is read of them shows."""
    for layer in kv.layers.values():
        for tensor in layer.tensors:
            if tensor.is_floating_point():
                as_indexable(tensor)[blocks] = 127 if tensor.dtype.itemsize == 1 else float("nan")


def assert_only_written(kv: KvMemory, before: list[Tensor], chunks: list[Chunk]) -> None:
    """Every slot but those of the step's tokens holds the bits that it held."""
    may_change = torch.zeros(kv.num_blocks, BLOCK_SIZE, dtype=torch.bool)
    for chunk in chunks:
        start = chunk.sequence.num_computed_tokens
        for place in range(start, start + chunk.num_tokens):
            may_change[chunk.sequence.block_rows[:, place // BLOCK_SIZE], place % BLOCK_SIZE] = True
    for tensor, old in zip(tensors_of(kv), before, strict=True):
        rows, old_rows = (
            one.transpose(1, 2)[~may_change].contiguous().view(torch.uint8) for one in (tensor, old)
        )
        assert torch.equal(rows, old_rows)


@pytest.mark.parametrize(
    ("family", "overrides", "overlap_steps"),
    [
        pytest.param("llama", SMALL, False, marks=pytest.mark.exhaustive),
        ("llama", SMALL, True),
        pytest.param("gemma2", WINDOWED, True, marks=pytest.mark.exhaustive),
    ],
)
def test_answers_through_graphs_are_those_of_single_kernels(
    tmp_path: Path, family: str, overrides: dict[str, Any], overlap_steps: bool
) -> None:
    directory = save_model(tmp_path / "model", family, **overrides)
    requests = [random_request(n, random.Random(6000 + n)) for n in range(4)]
    plain = make_engine(directory, attention_backend="torch", dtype="float32")
    wanted = [result(completion) for completion in complete(plain, *requests)]
    replays = Replays()
    rig = RunnerOf(directory, overlap_steps=overlap_steps, max_num_batched_tokens=16, max_num_seqs=4)
    engine = engine_over(rig, rig.recorded(replays))

    assert [result(completion) for completion in complete(engine, *requests)] == wanted
    assert sum(replays.counts) == engine.stats().steps


def test_graphs_are_recorded_from_the_largest_down_and_warmed_up_once_per_number_of_rows(
    small: Path,
) -> None:
    warmed_up: list[bool] = []

    def capture(function: Callable[[], None], *, warms_up: bool) -> Callable[[], object]:
        warmed_up.append(warms_up)
        return function

    RunnerOf(small, max_num_seqs=20, max_num_batched_tokens=64).recorded(capture)

    # 64 tokens beside up to 20 and up to 16 that decode; then those that only decode: 24, 16, 8, 4, 2, 1.
    assert warmed_up == [True, False, *[True] * 6]


@pytest.mark.parametrize(
    ("decodes", "chunks", "tokens", "wanted"),
    [
        (3, 0, 3, StepSize(4, 0, 4, 4)),
        (4, 0, 4, StepSize(4, 0, 4, 4)),
        (20, 0, 20, StepSize(24, 0, 24, 24)),
        (16, 1, 64, StepSize(64, 16, 16, 20)),
        (17, 1, 64, StepSize(64, 16, 20, 20)),  # one that decodes more
        (16, 1, 65, StepSize(96, 20, 16, 20)),  # one token more
        (0, 16, 64, StepSize(64, 16, 16, 20)),
        (0, 17, 64, StepSize(96, 20, 16, 20)),  # one chunk more
        (0, 20, 96, StepSize(96, 20, 16, 20)),
    ],
)
def test_a_step_takes_the_smallest_size_that_holds_it(
    small: Path, decodes: int, chunks: int, tokens: int, wanted: StepSize
) -> None:
    sizes = step_sizes(max_num_seqs=20, max_num_batched_tokens=96)
    step = a_step(decodes, chunks, tokens)

    assert next(size for size in sizes if size.holds(step)) == wanted


def test_full_sizes_and_one_more_give_the_logits_of_single_kernels(small: Path) -> None:
    replays = Replays()
    rig = RunnerOf(small, max_num_seqs=6, max_num_batched_tokens=72)
    eager, recorded = rig.eager(200), rig.recorded(replays, 200)
    for counts in (
        [64 - 4, 1, 1, 1, 1],
        [65 - 4, 1, 1, 1, 1],
        [12] * 6,
        [1] * 6,
    ):
        chunks = [
            Chunk(a_sequence(n, count, 0, [list(range(20 * n, 20 * n + 19))]), count)
            for n, count in enumerate(counts)
        ]

        logits = recorded.forward(chunks).clone()

        assert len(logits) == len(counts)
        torch.testing.assert_close(logits, eager.forward(chunks), atol=2e-4, rtol=1e-3)
    assert sum(replays.counts) == 4


def test_a_step_that_completes_no_prompt_has_no_logits(small: Path) -> None:
    rig = RunnerOf(small, max_num_seqs=2, max_num_batched_tokens=16)
    sequence = a_sequence(1, 9, 0, [[3, 4, 5]])

    assert rig.recorded(Replays()).forward([Chunk(sequence, 4)]).shape == (0, VOCAB_SIZE)


def refuse(function: Callable[[], None], *, warms_up: bool) -> Callable[[], object]:
    raise RuntimeError("operation not permitted when stream is capturing")


def assert_eager(engine: Engine, **wanted: int) -> None:
    assert {reason: count for reason, count in engine.stats().eager_steps.items() if count} == wanted


def test_a_model_that_cannot_be_recorded_runs_kernel_by_kernel_and_is_counted(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = RunnerOf(small, max_num_seqs=4, max_num_batched_tokens=16)
    with caplog.at_level(logging.WARNING, logger="nightshift_engine"):
        engine = engine_over(rig, rig.recorded(refuse))
    request = Request("a", [5, 6, 7], greedy(6))

    error = "RuntimeError: operation not permitted when stream is capturing"
    assert [record.getMessage() for record in caplog.records] == [
        f"steps with prompts run without CUDA graphs: {error}",
        f"steps that only decode run without CUDA graphs: {error}",
    ]
    plain = make_engine(small, attention_backend="torch", dtype="float32")
    assert result(complete(engine, request)[0]) == result(complete(plain, request)[0])
    assert_eager(engine, not_recorded=engine.stats().steps)


def test_decoding_is_recorded_where_prompts_are_not(small: Path) -> None:
    def refuse_first(function: Callable[[], None], *, warms_up: bool) -> Callable[[], object]:
        return (
            replays(function, warms_up=warms_up)
            if refused
            else refused.append(True) or refuse(function, warms_up=warms_up)
        )

    refused: list[bool] = []
    replays = Replays()
    rig = RunnerOf(small, max_num_seqs=4, max_num_batched_tokens=16)
    engine = engine_over(rig, rig.recorded(refuse_first))

    complete(engine, Request("a", [5, 6, 7], greedy(6)))

    assert sum(replays.counts) == 5
    assert_eager(engine, not_recorded=1)


def test_steps_with_drafted_tokens_are_replayed_and_change_no_answer(small: Path) -> None:
    requests = [Request(f"{n}", [5, 6, 7 + n], greedy(14)) for n in range(2)]
    plain = complete(make_engine(small, attention_backend="torch", dtype="float32"), *requests)
    guesses = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}
    rig = RunnerOf(small, max_num_seqs=6, max_num_batched_tokens=16)
    engine = with_guesses(engine_over(rig, rig.recorded(Replays())), guesses, random.Random(3))

    assert [result(answer) for answer in complete(engine, *requests)] == [result(answer) for answer in plain]
    assert engine.stats().num_accepted_tokens > 0
    assert_eager(engine)


def test_steps_with_adapters_are_counted_and_those_without_are_replayed(small: Path) -> None:
    rig = RunnerOf(small, max_num_seqs=2, max_num_batched_tokens=8)
    runner = rig.recorded(Replays())
    runner.has_adapters = True
    chunk = Chunk(a_sequence(1, 5, 0, [[3, 4]]), 5)

    runner.forward([chunk])
    assert not runner.eager_steps
    chunk.sequence.adapter_slot = 0
    runner.forward([chunk])
    assert runner.eager_steps == {"adapters": 1}


def test_a_step_larger_than_all_that_were_recorded_is_counted(small: Path) -> None:
    rig = RunnerOf(small, max_num_seqs=2, max_num_batched_tokens=8)
    runner, replays = rig.recorded(Replays()), rig.eager()
    chunk = Chunk(a_sequence(1, 9, 0, [[3, 4, 5]]), 9)

    torch.testing.assert_close(runner.forward([chunk]), replays.forward([chunk]), atol=2e-4, rtol=1e-3)
    assert runner.eager_steps == {"too_large": 1}
    assert not replays.eager_steps  # this device has no graphs


def test_a_step_that_scores_a_prompt_is_no_graph_and_is_counted(small: Path) -> None:
    rig = RunnerOf(small, max_num_seqs=16, max_num_batched_tokens=16)
    engine = engine_over(rig, rig.recorded(Replays()))
    request = Request("a", [5, 6, 7], greedy(4), prompt_logprobs=1)

    complete(engine, request)

    assert_eager(engine, prompt_logprobs=1)


def test_graphs_and_parts_of_split_decoding_are_part_of_the_memory_that_a_step_takes() -> None:
    class Text:
        hidden_size, intermediate_size, vocab_size, num_attention_heads = 64, 128, 1000, 4

    recorded = EngineConfig("model", max_num_seqs=256, max_num_batched_tokens=8192)
    eager = replace(recorded, cuda_graphs=False)
    cpu, cuda, cuda_eager = (
        largest_step_bytes(config, Text, torch.bfloat16, torch.device(name))
        for config, name in ((recorded, "cpu"), (recorded, "cuda"), (eager, "cuda"))
    )
    context = 100_000
    splits = -(-context // split_tokens(context))
    parts = SplitParts.allocate(256, 4, splits, 16, torch.device("meta"))

    assert cuda - cuda_eager == graph_bytes(256, 8192, 1000) > len(step_sizes(256, 8192)) << 20
    assert cuda_eager - cpu >= parts.sums.nbytes + parts.maxima.nbytes + parts.denominators.nbytes


class PreparedRunner:
    """Notes what is asked of a runner before the first request."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.why_eager: str | None = None

    def warm_up(self, context_length: int) -> None:
        self.calls.append("warm up")

    def record_graphs(self, capture: object, **limits: int) -> None:
        self.calls.append("record")


@pytest.mark.parametrize(
    ("device", "attention", "cuda_graphs", "calls", "why_eager"),
    [
        ("cuda", "triton", True, ["warm up", "record"], None),
        ("cuda", "triton", False, ["warm up"], "turned_off"),
        ("cuda", "varlen", True, [], "attention_backend"),
        ("cuda", "torch", True, [], "attention_backend"),
        ("cpu", "native", True, [], None),
    ],
)
def test_kernels_are_launched_before_the_first_request_and_steps_without_graphs_have_a_reason(
    device: str,
    attention: str,
    cuda_graphs: bool,
    calls: list[str],
    why_eager: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_module, "CudaCapture", lambda device: Replays())
    model = SimpleNamespace(
        facts=SimpleNamespace(context_length=CONTEXT, vocab_size=VOCAB_SIZE),
        config=EngineConfig("model", cuda_graphs=cuda_graphs),
        device=torch.device(device),
        attention=attention,
        times=LoadTimes(),
        adapters=None,
    )
    runner: Any = PreparedRunner()

    runner_module._prepare(runner, model)  # type: ignore[arg-type]

    assert (runner.calls, runner.why_eager) == (calls, why_eager)
