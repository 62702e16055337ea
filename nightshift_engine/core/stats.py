"""Counts and histograms of an engine, as plain numbers: an operator reads them as metrics of the worker.

One thread observes; any may read, and may miss the newest observation.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from .request import PRIORITY_RANKS

QUEUE_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
PREFILL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
INTER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
DECODE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1800)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STEP_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Observations up to and including each bound, and beyond the last."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """The numbers of observations that are at most each bound, the last of which is "+Inf": as Prometheus
        has it.
        """
        total, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets


@dataclass(slots=True)
class ClassHistograms:
    """Histograms of the requests of one class. An encoder fills the queue's alone, and counts prompts."""

    queue_s: Histogram = field(default_factory=lambda: Histogram(QUEUE_BUCKETS_S))
    """Seconds from `add` to the first step that computes some of it."""
    prefill_s: Histogram = field(default_factory=lambda: Histogram(PREFILL_BUCKETS_S))
    """Seconds from then to its first token."""
    inter_token_s: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BUCKETS_S))
    decode_s: Histogram = field(default_factory=lambda: Histogram(DECODE_BUCKETS_S))
    """Seconds from its first token to its last."""
    prompt_tokens: int = 0
    generation_tokens: int = 0


class EngineHistograms:
    """Histograms of one engine."""

    def __init__(self) -> None:
        self.batch_size = Histogram(BATCH_BUCKETS)
        """Sequences, or an encoder's inputs, of a step."""
        self.tokens_per_step = Histogram(STEP_TOKENS_BUCKETS)
        """Padding not counted."""
        self.by_class = {name: ClassHistograms() for name in PRIORITY_RANKS}

    def of_class(self, priority: str) -> ClassHistograms:
        """The histograms of a class."""
        histograms = self.by_class.get(priority)
        if histograms is None:
            histograms = self.by_class[priority] = ClassHistograms()
        return histograms

    def observe_step(self, batch_size: int, num_tokens: int) -> None:
        self.batch_size.observe(batch_size)
        self.tokens_per_step.observe(num_tokens)


EagerReason = Literal[
    "turned_off",
    "attention_backend",
    "encoder_decoder",
    "not_recorded",
    "too_large",
    "prompt_logprobs",
    "adapters",
]
"""The reason why a step on CUDA ran kernel by kernel: `cuda_graphs` is off; neither this attention back end
nor an encoder-decoder can be recorded; recording failed, as the log says; it is larger than any recorded; it
scores tokens of prompts, or has adapters, and steps are recorded without."""
EAGER_REASONS: tuple[EagerReason, ...] = get_args(EagerReason)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of a decoder since it was loaded, and what is in it now."""

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
    """Tokens of these whose KV was found in memory instead of being computed."""
    tokens_recomputed: int
    """Tokens computed a second time, because a preemption had taken their blocks."""
    deferrals: int
    """Times a sequence waited for a prefix that another was computing."""
    out_of_memory: int
    """Steps that ran out of memory, and were planned anew, smaller."""
    max_num_batched_tokens: int
    """Tokens a step may have now: fewer than configured for a while after it ran out of memory."""
    num_drafts: int = 0
    """Times that tokens were drafted for a sequence."""
    num_draft_tokens: int = 0
    """Tokens drafted, each of which a step computed."""
    num_accepted_tokens: int = 0
    """Drafted tokens that were those which the model would have sampled one by one."""
    eager_steps: Mapping[str, int] = field(default_factory=dict)
    """Steps that ran kernel by kernel although the device has graphs, by every `EagerReason`."""
    roofline_seconds: float | None = None
    """The least time that the steps' reads and arithmetic could have taken; None: it is not known."""

    @property
    def blocks_used(self) -> int:
        """Blocks that sequences hold; others may still have content to be found."""
        return self.blocks_total - self.blocks_free


@dataclass(frozen=True, slots=True)
class EncoderStats:
    """Counts of an encoder, which computes each input once, whole, in one step."""

    waiting: int
    steps: int
    """Forward passes."""
    tokens_computed: int
    """Padding not counted."""
    tokens_padded: int = 0
    """The padding."""
    roofline_seconds: float | None = None
    """The least time that the passes' reads and arithmetic could have taken; None: it is not known."""
