"""What an engine has done and holds, as plain numbers. An operator reads them as metrics of the worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Of a decoder: counts since it was loaded, and what is in it now."""

    running: int
    waiting: int
    blocks_free: int
    blocks_total: int
    """A block holds the KV of one group of layers (`KvGroups`); most models have one group."""
    preemptions: int
    steps: int
    """Steps whose tokens are known; one may be in flight besides."""
    tokens_computed: int
    """Tokens that went through the model, prompts and recomputation included."""
    tokens_generated: int
    tokens_queried: int
    """Tokens of admitted sequences whose KV was looked for in memory."""
    tokens_reused: int
    """Of them, tokens whose KV was found in memory instead of being computed."""
    tokens_recomputed: int
    """Tokens computed a second time, because a preemption had taken their blocks."""
    deferrals: int
    """Times a sequence waited for a prefix that another was computing."""
    out_of_memory: int
    """Steps that ran out of memory, and were planned anew, smaller."""
    max_num_batched_tokens: int
    """Tokens a step may have now: fewer than configured for a while after it ran out of memory."""
    roofline_seconds: float | None = None
    """The least time that the steps' reads and arithmetic could have taken; None: it is not known."""

    @property
    def blocks_used(self) -> int:
        """Blocks that sequences hold; others may still have content to be found."""
        return self.blocks_total - self.blocks_free


@dataclass(frozen=True, slots=True)
class EncoderStats:
    """Of an encoder, whose sequences are inputs: each is computed once, whole, in one step."""

    waiting: int
    steps: int
    """Forward passes."""
    tokens_computed: int
    """Padding not counted."""
    tokens_padded: int = 0
    """The padding."""
    roofline_seconds: float | None = None
    """The least time that the passes' reads and arithmetic could have taken; None: it is not known."""
