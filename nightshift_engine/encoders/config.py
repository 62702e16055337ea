"""The batching of an encoder engine: batch sizes and a delay by Triton's names, tokens, and length
buckets.
"""

from dataclasses import dataclass, field
from typing import Final

from ..errors import InvalidBatching

BATCH_SIZE_MAX: Final = 65_536
BATCHED_TOKENS_MAX: Final = 16_777_216
LENGTH_BUCKETS_MAX: Final = 64
PREFERRED_SIZES_MAX: Final = 64
QUEUE_DELAY_US_MAX: Final = 10_000_000
"""Ten seconds: no step waits longer for others to join it."""
QUEUE_SIZE_MAX: Final = 100_000
"""Inputs that may wait in one engine: their token ids take some 100 MB at 128 tokens each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """The conditions under which a batch is complete (Triton's names and meanings)."""

    max_queue_delay_microseconds: int = 0
    """The longest that an input waits for others to join its batch; 0: a free device never waits."""

    preferred_batch_size: tuple[int, ...] = ()
    """A batch of one of these sizes waits for no others. Without any, that is `max_batch_size`."""

    def __post_init__(self) -> None:
        delay_us = self.max_queue_delay_microseconds
        _check_range("max_queue_delay_microseconds", delay_us, 0, QUEUE_DELAY_US_MAX)
        if len(self.preferred_batch_size) > PREFERRED_SIZES_MAX:
            raise InvalidBatching("preferred_batch_size", f"has more than {PREFERRED_SIZES_MAX} sizes")
        for size in self.preferred_batch_size:
            _check_range("preferred_batch_size", size, 1, BATCH_SIZE_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The batching of one encoder engine."""

    max_batch_size: int = 256
    """Inputs of one forward pass; 0, as in Triton: the model takes one at a time."""

    max_num_batched_tokens: int | None = None
    """Tokens of one forward pass, padding counted, which bounds its memory and its time.

    None takes what the model runs best at.
    """

    length_buckets: tuple[int, ...] | None = None
    """Inputs of one forward pass lie between two of these lengths in tokens, ascending.

    None: inputs go with those nearest in length. (): in their order of arrival, whatever their length.
    """

    dynamic_batching: DynamicBatching = field(default_factory=DynamicBatching)

    def __post_init__(self) -> None:
        _check_range("max_batch_size", self.max_batch_size, 0, BATCH_SIZE_MAX)
        if self.max_num_batched_tokens is not None:
            _check_range("max_num_batched_tokens", self.max_num_batched_tokens, 1, BATCHED_TOKENS_MAX)
        self._check_length_buckets()
        for size in self.dynamic_batching.preferred_batch_size:
            if size > self.max_batch_size:
                problem = f"must not exceed max_batch_size, {self.max_batch_size}, got {size}"
                raise InvalidBatching("dynamic_batching.preferred_batch_size", problem)

    def _check_length_buckets(self) -> None:
        bounds = self.length_buckets or ()
        if len(bounds) > LENGTH_BUCKETS_MAX:
            raise InvalidBatching("length_buckets", f"has more than {LENGTH_BUCKETS_MAX} lengths")
        for bound in bounds:
            _check_range("length_buckets", bound, 1, BATCHED_TOKENS_MAX)
        if list(bounds) != sorted(set(bounds)):
            raise InvalidBatching("length_buckets", f"must ascend, got {list(bounds)}")

    @property
    def inputs_per_pass(self) -> int:
        return max(1, self.max_batch_size)


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidBatching(field, f"must be {least} to {most}, got {value}")
