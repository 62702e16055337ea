"""The least time that a step can take on its device: what it must read, and what it must compute. Pure.

    t >= max((W + sum(ctx) * kv) / bandwidth, (2 * P * T + 2 * H * R + pairs * a) / flops)

W are the bytes of all linears and the head (of experts, those that T tokens choose if they are drawn evenly),
P the parameters that one token passes in the layers, H those of the head, for the R rows with logits; kv the
bytes of KV of a token, a the operations of attention for a token and one that it sees.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""The start of a chunk in its sequence, and its number of tokens."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The best that a device was seen to do."""

    bytes_per_second: float
    flops_per_second: float

    def of_several(self, count: int) -> "DeviceLimits":
        """The best of so many devices like this one, of which each does its share."""
        return DeviceLimits(count * self.bytes_per_second, count * self.flops_per_second)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Work of the layers that see the same: all of the context, or a window of so many tokens."""

    window: int | None
    kv_bytes: int
    """Bytes of KV per token in all these layers."""
    pair_flops: int
    """Operations in all these layers for a token and one that it sees."""


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Work of all layers' experts together."""

    num_experts: int
    num_chosen: int
    """Experts that each token passes."""
    parameters: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Work of a decoder per token, row and step."""

    layer_parameters: int
    layer_bytes: int
    head_parameters: int
    head_bytes: int
    attention: tuple[AttentionWork, ...]
    experts: ExpertWork | None = None

    def weight_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step of so many tokens reads."""
        size: float = self.layer_bytes + self.head_bytes
        if self.experts is not None:
            share = self.experts.num_chosen / self.experts.num_experts
            size += self.experts.size_bytes * (1 - (1 - share) ** tokens)
        return size

    @property
    def token_flops(self) -> float:
        """Operations for a token in all layers, without attention."""
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
        self._is_windowed = any(layer.window is not None for layer in work.attention)

    def least_seconds(self, tokens: int, seen: int, rows: int, spans: Iterable[Span]) -> float:
        """The least time of a step of `tokens` tokens that read `seen`; `rows` of them get logits."""
        work, pairs = self._work, seen
        if self._is_windowed or tokens != rows:
            spans = list(spans)
            pairs = sum(_pairs(span, None) for span in spans)
        size, flops = work.weight_bytes(tokens), self._token_flops * tokens + 2 * work.head_parameters * rows
        for layer in work.attention:
            if layer.window is None:
                size, flops = size + seen * layer.kv_bytes, flops + pairs * layer.pair_flops
                continue
            for span in spans:
                size += min(sum(span), layer.window + span[1] - 1) * layer.kv_bytes
                flops += _pairs(span, layer.window) * layer.pair_flops
        return max(size / self._limits.bytes_per_second, flops / self._limits.flops_per_second)


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """Work of an encoder of full attention, without embeddings, pooling and heads."""

    token_parameters: int
    """Parameters that every token passes."""
    input_parameters: int
    """Parameters that one token of each input passes, where no other is read of the last layer."""
    size_bytes: int
    pair_flops: int
    """Operations for a token and one that it sees, in all layers but that one."""
    seen_flops: int
    """Operations in that one for a token that the one of its input sees."""


class EncoderRoofline:
    """The least time of each of an encoder's passes."""

    def __init__(self, work: EncoderWork, limits: DeviceLimits) -> None:
        self._work = work
        self._limits = limits

    def least_seconds(self, lengths: Sequence[int]) -> float:
        """The least time of a pass over inputs of so many tokens."""
        work, tokens = self._work, sum(lengths)
        linear = 2 * (work.token_parameters * tokens + work.input_parameters * len(lengths))
        seen = work.pair_flops * sum(length * length for length in lengths) + work.seen_flops * tokens
        limits = self._limits
        return max(work.size_bytes / limits.bytes_per_second, (linear + seen) / limits.flops_per_second)


def _pairs(span: Span, window: int | None) -> int:
    """The number of pairs: the tokens that those of a chunk see, themselves included."""
    start, count = span
    growing = count if window is None else min(count, max(0, window - start))
    beyond = 0 if window is None else (count - growing) * window
    return growing * start + growing * (growing + 1) // 2 + beyond
