"""How an encoder engine is set up."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Limits of one encoder engine, named as in Triton's dynamic batcher where it has the name."""

    max_num_batched_tokens: int | None = None
    """Tokens of one step, padding counted. Bounds its memory, and how long it keeps others waiting.

    None takes what the model runs best at.
    """

    preferred_batch_size: int = 32
    """With this many inputs waiting, a step starts at once..."""

    max_queue_delay_us: int = 0
    """...with fewer, it waits this long for more, from the arrival of the oldest.

    At 0, the next batch gathers while a step runs, which adds no latency.
    """

    max_queue_size: int = 100_000
    """Inputs that may wait; a request that would exceed it is refused whole."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "preferred_batch_size", "max_queue_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} must be at least 1, got {value}")
        if self.max_queue_delay_us < 0:
            raise InvalidConfig(f"max_queue_delay_us must not be negative, got {self.max_queue_delay_us}")
