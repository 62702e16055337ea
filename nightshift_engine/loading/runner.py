"""Makes the runner of a loaded model: KV memory, attention over it, and CUDA graphs."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..core.batcher import Chunk
from ..errors import InvalidConfig
from ..execution.attention.selection import can_be_recorded, has_transposed_keys, make_attention
from ..execution.device.devices import DeviceMemory
from ..execution.graphs.capture import CudaCapture
from ..execution.kv_memory import KvMemory, num_blocks_for
from ..execution.model_runner import ModelRunner
from .draft import draft_config
from .model import LoadedModel
from .ranks.processes import ClearBlocks, NewRunner, Ranks, Step


class RankedRunner:
    """A model runner whose steps the other ranks compute too. After it has raised, it only raises."""

    def __init__(self, runner: ModelRunner, ranks: Ranks) -> None:
        self._runner, self._ranks = runner, ranks
        ranks.num_runners += 1
        self._number = ranks.num_runners

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        """Computes like `ModelRunner.forward`. Raises `RankLost`, also where memory does not suffice."""
        assert self._number == self._ranks.num_runners, "another engine has the ranks of this model"
        with self._ranks.in_step():
            step = self._runner.lay_out(chunks)
            self._ranks.send(Step(step, None if promised is None else len(promised)))
            if promised is not None:
                self._ranks.group.broadcast(promised)
            return self._runner.run(step, promised)

    def clear_blocks(self, blocks: list[int]) -> None:
        with self._ranks.in_step():
            self._ranks.send(ClearBlocks(blocks))
            self._runner.clear_blocks(blocks)

    @property
    def eager_steps(self) -> dict[str, int]:
        """Steps of this rank that ran kernel by kernel, by reason."""
        return self._runner.eager_steps

    def check(self) -> None:
        """Raises `RankLost` if what the last step gave may be wrong."""
        self._ranks.check()


def make_runner(model: LoadedModel, memory: DeviceMemory | None) -> tuple[Any, int]:
    """The runner of an engine, and the number of its KV blocks. Raises `InvalidConfig` or `RankLost`.

    `memory` is its part of the device's; None gives it all that may be taken now.
    """
    if model.ranks is None:
        return make_model_runner(model, memory)
    with model.ranks.in_step():
        model.ranks.send(NewRunner(model.config, memory))
        runner, num_blocks = make_model_runner(model, memory)
    return RankedRunner(runner, model.ranks), num_blocks


def make_model_runner(model: LoadedModel, memory: DeviceMemory | None) -> tuple[Any, int]:
    """The runner of this process's part of a model, and the blocks that fit here and on the other ranks."""
    facts, config, device, groups = model.facts, model.config, model.device, model.groups
    memory = memory or DeviceMemory.measure(device, config.gpu_memory_utilization)
    draft, step_bytes, token_bytes = model.draft, model.step_bytes, 0
    if draft is not None:
        step_bytes += draft.step_bytes
        token_bytes = sum(shape.bytes_per_token(draft.kv_dtype) for shape in draft.shapes.values())
    num_blocks = num_blocks_for(
        *(config, model.shapes, groups, facts.context_length, model.kv_dtype, memory),
        step_bytes,
        token_bytes,
    )
    if model.group is not None:
        num_blocks = model.group.least(num_blocks)
    return _runner_over(model, num_blocks), num_blocks


def make_draft_runner(model: LoadedModel, runner: ModelRunner, num_blocks: int) -> ModelRunner:
    """The runner of a model's draft model, over as many blocks as `runner` has. Raises `InvalidConfig`."""
    assert model.draft is not None, "it has a draft model"
    config = draft_config(model.config, model.facts.context_length)
    draft_runner: ModelRunner = _runner_over(replace(model.draft, config=config), num_blocks)
    draft_runner.threads = runner.threads  # both compute on the engine's thread
    return draft_runner


def _runner_over(model: LoadedModel, num_blocks: int) -> Any:
    """A runner with KV memory of so many blocks."""
    device, groups, config = model.device, model.groups, model.config
    try:
        with model.times.part("KV memory"):
            kv = KvMemory(
                model.shapes,
                num_blocks=num_blocks,
                block_size=config.block_size,
                dtype=model.kv_dtype,
                device=device,
                transposed_keys=has_transposed_keys(model.attention),
                groups=groups,
            )
    except (RuntimeError, MemoryError, ValueError) as error:  # the last: more than can be addressed
        raise InvalidConfig(f"no memory for {num_blocks} KV blocks; set num_kv_blocks: {error}") from error
    attention = make_attention(model.attention, kv, model.facts.context_length)
    runner = model.runner(model.forward_pass, kv, attention, device)
    if isinstance(runner, ModelRunner):
        runner.has_adapters = model.adapters is not None
        _prepare(runner, model)
    return runner


def _prepare(runner: ModelRunner, model: LoadedModel) -> None:
    """Launches every kernel once, so that none is compiled later, and records steps where they can be."""
    facts, config, is_cuda = model.facts, model.config, model.device.type == "cuda"
    if not can_be_recorded(model.attention):
        runner.why_eager = "attention_backend" if is_cuda else None
        return
    with model.times.part("warm-up"):
        runner.warm_up(facts.context_length)
        if model.adapters is not None:
            with model.adapters.warming_up():
                runner.warm_up(facts.context_length, with_adapters=True)
    if is_cuda and config.cuda_graphs:
        with model.times.part("graphs"):
            runner.record_graphs(
                CudaCapture(model.device),
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                context_length=facts.context_length,
                vocab_size=facts.vocab_size,
            )
    elif is_cuda:
        runner.why_eager = "turned_off"
