"""Decoding through recorded graphs, with a stand-in for the recording: it replays by doing the same again.

What is left to a device is the recording itself. Sizes, buffers and dummy rows are the same everywhere.
"""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nightshift_engine import Engine, EngineConfig, Request
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.attention.selection import make_attention
from nightshift_engine.execution.cuda_graphs import _Buffers, graph_sizes
from nightshift_engine.execution.kv_memory import KvMemory
from nightshift_engine.execution.model_runner import ModelRunner
from nightshift_engine.execution.step_layout import lay_out
from nightshift_engine.loading.model import load_model
from tests.unit.engine.running.test_overlap import random_request, result
from tests.unit.engine.tiny.decoders import CONTEXT, VOCAB_SIZE, complete, greedy, make_engine, save_model

BLOCK_SIZE, NUM_BLOCKS = 4, 64
CPU = torch.device("cpu")


class Replays:
    """Notes what is recorded and how often each recording is replayed."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        number = len(self.counts)
        self.counts.append(0)

        def replay() -> None:
            self.counts[number] += 1
            function()

        function()
        return replay


class Rig:
    """An engine on the CPU whose decoding steps go through graphs; its memory has one block more."""

    def __init__(
        self,
        directory: Path,
        capture: Callable[[Callable[[], None]], Callable[[], object]],
        max_num_seqs: int = 10,
        num_blocks: int = NUM_BLOCKS,
        **settings: object,
    ) -> None:
        config = EngineConfig(
            str(directory),
            device="cpu",
            dtype="float32",
            attention_backend="torch",
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            **settings,
        )  # type: ignore[arg-type]
        model = load_model(config)
        self.kv = KvMemory(
            model.shapes,
            num_blocks=num_blocks + 1,
            block_size=BLOCK_SIZE,
            dtype=model.dtype,
            device=CPU,
            groups=model.groups,
        )
        self.runner = ModelRunner(model.forward_pass, self.kv, make_attention("torch", self.kv), CPU)
        self.runner.record_graphs(
            capture, max_num_seqs=max_num_seqs, context_length=CONTEXT, vocab_size=VOCAB_SIZE
        )
        pool, windows = BlockPool(num_blocks, BLOCK_SIZE), model.groups.windows
        self.engine = Engine(self.runner, model.tokenizer, model.facts, pool, config, windows=windows)


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
    assert graph_sizes(max_num_seqs) == sizes


WINDOWED = {"sliding_window": 8, "num_hidden_layers": 4, "head_dim": 8, "query_pre_attn_scalar": 8}


@pytest.mark.parametrize(
    ("family", "overrides", "num_blocks", "overlap_steps"),
    [
        ("llama", {}, 20, False),
        ("llama", {}, 20, True),
        pytest.param("gemma2", WINDOWED, 40, False, marks=pytest.mark.exhaustive),
        ("gemma2", WINDOWED, 40, True),
    ],
)
def test_answers_through_graphs_are_those_of_single_steps_for_each_group_of_layers(
    tmp_path: Path, family: str, overrides: dict[str, int], num_blocks: int, overlap_steps: bool
) -> None:
    directory = save_model(tmp_path / "model", family, **overrides)
    requests = [random_request(n, random.Random(6000 + n)) for n in range(14)]
    plain = make_engine(directory, attention_backend="torch", dtype="float32")
    wanted = [result(completion) for completion in complete(plain, *requests)]
    replays = Replays()
    rig = Rig(
        directory, replays, num_blocks=num_blocks, overlap_steps=overlap_steps, max_num_batched_tokens=16
    )

    assert [result(completion) for completion in complete(rig.engine, *requests)] == wanted
    assert sum(replays.counts) > 10
    assert rig.engine.stats().preemptions > 0 or family == "gemma2"


def test_graphs_are_recorded_from_the_largest_down_and_the_next_larger_is_replayed(llama: Path) -> None:
    replays = Replays()
    rig = Rig(llama, replays)
    complete(rig.engine, *(Request(str(n), [n + 1, 7], greedy(4)) for n in range(3)))

    # 16, 8, 4, 2, 1; the prompts' step is none of them, and the three decode steps take the one of 4.
    assert replays.counts == [0, 0, 3, 0, 0]


def test_dummy_rows_write_to_the_reserved_block_only(llama: Path) -> None:
    rig = Rig(llama, Replays())
    for layer in rig.kv.layers.values():
        layer.keys.zero_()
        layer.values.zero_()
    complete(rig.engine, *(Request(str(n), [n + 1, 7, 9], greedy(6)) for n in range(3)))

    written = rig.kv.layers[0].keys.abs().sum(dim=(1, 3))  # [blocks, block_size]
    assert written[-1].nonzero().tolist() == [[0]]
    used = written[:-1].nonzero()
    assert len(used) == 3 * (3 + 6 - 1)  # the last token's KV is not needed


def test_what_rows_share_moves_with_them_behind_the_dummies() -> None:
    buffers = _Buffers(8, 12, BLOCK_SIZE, NUM_BLOCKS, CPU, num_groups=1)
    chunks = []
    for name in ("a", "b", "c"):
        sequence = Sequence(Request(name, range(10)), arrival=0, num_tokens_max=12)
        sequence.add_blocks([5, 6, 10 + len(chunks)])
        sequence.num_computed_tokens = 9
        chunks.append(Chunk(sequence, 1))

    buffers.fill(lay_out(chunks, BLOCK_SIZE, CPU, shares_prefixes=True), 8)

    shared = buffers.inputs(8).layout.shared_tokens
    assert shared is not None
    assert shared.tolist() == [0, 0, 0, 0, 0, 0, 8, 8]


def test_rows_that_have_left_leave_nothing_behind(llama: Path) -> None:
    """Fewer rows than before: the places of those gone must not write to blocks that others have now."""
    rig = Rig(llama, Replays())
    many = [Request(f"short{n}", [n + 1, 7, 9], greedy(3)) for n in range(8)]
    complete(rig.engine, *many)
    few = [Request(f"long{n}", [50 + n] * 9, greedy(20)) for n in range(5)]

    got = [result(completion) for completion in complete(rig.engine, *few)]

    plain = make_engine(llama, attention_backend="torch", dtype="float32")
    assert got == [result(completion) for completion in complete(plain, *few)]


def test_a_model_that_cannot_be_recorded_runs_step_by_step(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(function: Callable[[], None]) -> Callable[[], object]:
        raise RuntimeError("operation not permitted when stream is capturing")

    with caplog.at_level(logging.WARNING, logger="nightshift_engine"):
        rig = Rig(llama, refuse)
    request = Request("a", [5, 6, 7], greedy(6))

    assert [record.getMessage() for record in caplog.records] == [
        "decoding runs without CUDA graphs: RuntimeError: operation not permitted when stream is capturing"
    ]
    plain = make_engine(llama, attention_backend="torch", dtype="float32")
    assert result(complete(rig.engine, request)[0]) == result(complete(plain, request)[0])
