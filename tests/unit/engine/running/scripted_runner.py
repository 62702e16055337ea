"""A model that returns scripted tokens, and engines over it."""

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightshift_engine import Engine, EngineConfig
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.live_request import ModelFacts
from nightshift_engine.engine import Runner
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.decoders import CONTEXT, EOS, VOCAB_SIZE, load_tokenizer


class ScriptedRunner:
    """Returns the same scripted tokens for every sequence; `fail_next` makes its next pass fail."""

    def __init__(self, script: Seq[int], *, vocab_size: int = VOCAB_SIZE) -> None:
        self.script, self.vocab_size = script, vocab_size
        self.fail_next = False
        self.wiped: list[list[int]] = []
        self.eager_steps: dict[str, int] = {}

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("kernel launch failed")
        last = [chunk for chunk in chunks if chunk.is_last]
        rows = [self._row(row.next_output_index) for chunk in last for row in (chunk.sequence, *chunk.draft)]
        return torch.stack(rows) if rows else torch.zeros(0, self.vocab_size)

    def clear_blocks(self, blocks: list[int]) -> None:
        self.wiped.append(blocks)

    def check(self) -> None:
        """Finds nothing."""

    def _row(self, index: int) -> Tensor:
        token = self.script[index % len(self.script)]
        return torch.nn.functional.one_hot(torch.tensor(token), self.vocab_size).float()


def scripted(llama: Path, text: str, **config: Any) -> Engine:
    """An engine whose model returns `text` and then ends the sequence."""
    tokenizer = load_tokenizer(str(llama))
    return engine_over(ScriptedRunner([*tokenizer.encode(text), EOS]), tokenizer, **config)


def engine_over(
    runner: Runner,
    tokenizer: Tokenizer,
    *,
    context_length: int = CONTEXT,
    num_blocks: int = 64,
    vocab_size: int = VOCAB_SIZE,
    **config: Any,
) -> Engine:
    facts = ModelFacts("scripted", vocab_size, context_length, frozenset({EOS}))
    pool = BlockPool(num_blocks, 4)
    return Engine(runner, tokenizer, facts, pool, EngineConfig("scripted", block_size=4, **config))
