"""The least time that a decode step or a prompt can take on a device. Pure.

A decode step of B sequences reads all weights and all their KV once, or computes for as long as it must; a
prompt of T tokens computes, or reads the weights:

    decode   t >= max((W + sum(ctx) * kv + B * vocab * 4) / bandwidth, 2 * P * B / flops)
    prefill  t >= max((2 * P * T + 2 * layers * heads * D * T^2) / flops, W / bandwidth)

W and P are the bytes and the number of the parameters of all linears and the head (the embedding table is
only looked up; of a mixture of experts, W counts those that a step needs and P those of one token), kv the
bytes of KV of a token; in prefill the head counts for the last token only.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.fixtures.models import Shape

LOGIT_BYTES = 4


@dataclass(frozen=True)
class Limits:
    """The best that a device can do."""

    bytes_per_second: float
    flops_per_second: float

    def decode_seconds(self, shape: Shape, itemsize: int, batch: int, context_tokens: float) -> float:
        """Least time of a step of `batch` sequences that see `context_tokens` tokens, all together."""
        weights = shape.num_parameters_read(batch) * itemsize
        kv = context_tokens * shape.kv_elements_per_token * itemsize
        reading = (weights + kv + batch * shape.vocab_size * LOGIT_BYTES) / self.bytes_per_second
        return max(reading, 2 * shape.num_linear_parameters * batch / self.flops_per_second)

    def prefill_seconds(self, shape: Shape, itemsize: int, prompts: int, length: int) -> float:
        """Least time for `prompts` prompts of `length` tokens."""
        flops = layers_flops(shape, 0, length) + 2 * shape.num_head_parameters
        weights = shape.num_parameters_read(prompts * length) * itemsize
        return max(prompts * flops / self.flops_per_second, weights / self.bytes_per_second)


def layers_flops(shape: Shape, start: int, end: int) -> float:
    """Operations of all layers for a prompt's tokens `[start, end)`, those before them being in KV memory."""
    # 2 L Hq D T^2 for a whole prompt, less the part of its prefix that is in KV memory.
    attention = 2.0 * shape.num_layers * shape.num_heads * shape.head_dim * (end**2 - start**2)
    return 2.0 * shape.num_layer_parameters * (end - start) + attention
