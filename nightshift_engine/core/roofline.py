"""The least time that a step can take on its device: what it must read, and what it must compute. Pure.

    t >= max((W + sum(ctx) * kv) / bandwidth, (2 * P * T + 2 * H * R + pairs * a) / flops)

W are the bytes of all linears and the head (the embedding table is only looked up; of experts, those that a
step of T tokens chooses if they are drawn evenly), P the parameters that one token passes in the layers, H
those of the head, for the R rows with logits; kv the bytes of KV of a token, a the operations of attention
for a token and one that it sees. Activations, logits and norms cost nothing here, and a prefix that sequences
share is read for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""Where a chunk begins in its sequence, and how many tokens it has."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a device was seen to do at best."""

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Of the layers that see the same: all of the context, or a window of so many tokens."""

    window: int | None
    kv_bytes: int
    """Per token, of all these layers."""
    pair_flops: int
    """For a token and one that it sees, of all these layers."""


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Of all layers' experts together."""

    num_experts: int
    num_chosen: int
    """By each token."""
    parameters: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What a decoder takes of its device per token, row and step."""

    layer_parameters: int
    layer_bytes: int
    """Both without experts."""
    head_parameters: int
    head_bytes: int
    attention: tuple[AttentionWork, ...]
    experts: ExpertWork | None = None

    def weight_bytes(self, tokens: int) -> float:
        """Read by a step of so many tokens."""
        size: float = self.layer_bytes + self.head_bytes
        if self.experts is not None:
            share = self.experts.num_chosen / self.experts.num_experts
            size += self.experts.size_bytes * (1 - (1 - share) ** tokens)
        return size

    @property
    def token_flops(self) -> float:
        """Of a token in all layers, without attention."""
        chosen = 0.0
        if self.experts is not None:
            chosen = self.experts.parameters * self.experts.num_chosen / self.experts.num_experts
        return 2 * (self.layer_parameters + chosen)


class Roofline:
    """The least time of each of a model's steps."""

    def __init__(self, work: ModelWork, limits: DeviceLimits) -> None:
        self._work = work
        self._limits = limits
        self._token_flops = work.token_flops
        self._is_windowed = any(each.window is not None for each in work.attention)

    def least_seconds(self, tokens: int, seen: int, rows: int, spans: Iterable[Span]) -> float:
        """Of a step of `tokens` tokens, `rows` of which get logits. `seen`: of each chunk, all tokens up to
        its last. `spans` are read only where these do not say enough: where there are prompts, or windows.
        """
        work, pairs = self._work, seen
        if self._is_windowed or tokens != rows:
            spans = list(spans)
            pairs = sum(_pairs(span, None) for span in spans)
        size, flops = work.weight_bytes(tokens), self._token_flops * tokens + 2 * work.head_parameters * rows
        for each in work.attention:
            if each.window is None:
                size, flops = size + seen * each.kv_bytes, flops + pairs * each.pair_flops
                continue
            for span in spans:
                size += min(sum(span), each.window + span[1] - 1) * each.kv_bytes
                flops += _pairs(span, each.window) * each.pair_flops
        return max(size / self._limits.bytes_per_second, flops / self._limits.flops_per_second)


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """What an encoder takes of its device in whose layers every token sees every other. Embeddings, pooling
    and heads cost nothing here.
    """

    token_parameters: int
    """That every token passes."""
    input_parameters: int
    """That one token of each input passes, where no other is read of the last layer."""
    size_bytes: int
    pair_flops: int
    """For a token and one that it sees, of all layers but that one."""
    seen_flops: int
    """For a token that the one of its input sees in that one."""


class EncoderRoofline:
    """The least time of each of an encoder's passes."""

    def __init__(self, work: EncoderWork, limits: DeviceLimits) -> None:
        self._work = work
        self._limits = limits

    def least_seconds(self, lengths: Sequence[int]) -> float:
        """Of a pass over inputs of so many tokens."""
        work, tokens = self._work, sum(lengths)
        linear = 2 * (work.token_parameters * tokens + work.input_parameters * len(lengths))
        seen = work.pair_flops * sum(length * length for length in lengths) + work.seen_flops * tokens
        limits = self._limits
        return max(work.size_bytes / limits.bytes_per_second, (linear + seen) / limits.flops_per_second)


def _pairs(span: Span, window: int | None) -> int:
    """How many tokens those of a chunk see, themselves included."""
    start, count = span
    growing = count if window is None else min(count, max(0, window - start))
    beyond = 0 if window is None else (count - growing) * window
    return growing * start + growing * (growing + 1) // 2 + beyond
