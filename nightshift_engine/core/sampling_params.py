"""One request's rules for choosing tokens, checked when made. Names and meanings are vLLM's."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidSamplingParams

STOP_STRINGS_MAX = 64
STOP_STRING_CHARACTERS_MAX = 1024
REPETITION_PENALTY_MIN, REPETITION_PENALTY_MAX = 0.01, 100.0  # beyond, logits leave the range of numbers
LOGPROBS_MAX = 1024  # alternatives per token; OpenAI's API stops at 20
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Validated sampling parameters; temperature 0 is greedy. Raises `InvalidSamplingParams`."""

    max_tokens: int | None = None
    """New tokens at most; None means as many as the context holds."""
    min_tokens: int = 0
    """Tokens before which end-of-sequence and stop ids are not drawn, and stop strings not seen."""
    temperature: float = 1.0
    top_k: int = 0
    """Keep exactly the k most likely tokens, of equally likely ones those of the lowest ids: 1 is greedy.
    0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities reach p of those that top_k and min_p keep; of
    equally likely ones those of the lowest ids."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the likeliest."""
    seed: int | None = None
    """The seed of draws. None derives it from the request's id, so that a resumed request still
    continues identically.
    """
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    """Draw no other tokens, but for the forced end of a thought; with a grammar, those that it allows too.
    Empty: all."""
    logprobs: int | None = None
    """Report each token's log-probability, and those of so many likeliest ones (0: of none besides)."""
    logprob_token_ids: tuple[int, ...] = ()
    """Report these in place of the likeliest ones: as many as `logprobs`, no token twice."""

    thinking_token_budget: int | None = None
    """Tokens of a thought, after which the marker of its end is forced. None: no limit of its own."""

    def __post_init__(self) -> None:
        stop: object = self.stop
        if isinstance(stop, str):  # a common slip, and would otherwise stop at each of its letters
            object.__setattr__(self, "stop", (stop,))
        self._hold("stop", tuple, "must be strings")
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            self._hold(name, tuple, "must be token ids")
        self._hold("logit_bias", dict, "must map token ids to values")
        self._check_lengths()
        self._check_distribution()
        self._check_penalties()
        self._check_stops()

    def _hold(self, name: str, kind: type[tuple[Any, ...]] | type[dict[Any, Any]], requirement: str) -> None:
        """Keeps a copy of a collection, which the caller may go on to change."""
        value = getattr(self, name)
        try:
            object.__setattr__(self, name, kind(value))
        except (TypeError, ValueError) as error:
            raise InvalidSamplingParams(name, value, requirement) from error

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _require(
                _is_int(self.max_tokens) and self.max_tokens >= 1, self, "max_tokens", "must be at least 1"
            )
        _require(
            _is_int(self.min_tokens) and self.min_tokens >= 0, self, "min_tokens", "must not be negative"
        )
        limit = math.inf if self.max_tokens is None else self.max_tokens
        _require(
            self.min_tokens <= limit, self, "min_tokens", f"must not exceed max_tokens ({self.max_tokens})"
        )

        budget = self.thinking_token_budget
        is_valid = budget is None or (_is_int(budget) and budget >= 0)
        _require(is_valid, self, "thinking_token_budget", "must be None or 0 or more")
        is_valid = self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= LOGPROBS_MAX)
        _require(is_valid, self, "logprobs", f"must be None or 0 to {LOGPROBS_MAX}")
        _require(isinstance(self.ignore_eos, bool), self, "ignore_eos", "must be a bool")

    def _check_distribution(self) -> None:
        _require(
            _is_finite(self.temperature) and self.temperature >= 0, self, "temperature", "must be 0 or more"
        )
        _require(_is_int(self.top_k) and self.top_k >= -1, self, "top_k", "must be -1, 0 (both: off) or more")
        _require(_is_finite(self.top_p) and 0 < self.top_p <= 1, self, "top_p", "must be in (0, 1]")
        _require(_is_finite(self.min_p) and 0 <= self.min_p <= 1, self, "min_p", "must be in [0, 1]")
        if self.seed is not None:
            in_range = _is_int(self.seed) and SEED_MIN <= self.seed <= SEED_MAX
            _require(in_range, self, "seed", "must be an integer of 64 bits")

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_is_finite(value) and -2 <= value <= 2, self, name, "must be in [-2, 2]")
        penalty = self.repetition_penalty
        valid = _is_finite(penalty) and REPETITION_PENALTY_MIN <= penalty <= REPETITION_PENALTY_MAX
        limits = f"[{REPETITION_PENALTY_MIN}, {REPETITION_PENALTY_MAX}]"
        _require(valid, self, "repetition_penalty", f"must be in {limits}")
        valid = all(_is_int(token) and token >= 0 for token in self.logit_bias)
        valid = valid and all(_is_finite(bias) and -100 <= bias <= 100 for bias in self.logit_bias.values())
        _require(valid, self, "logit_bias", "must map token ids to values in [-100, 100]")

    def _check_stops(self) -> None:
        valid = all(
            isinstance(text, str) and 0 < len(text) <= STOP_STRING_CHARACTERS_MAX for text in self.stop
        )
        _require(valid, self, "stop", f"must be strings of 1 to {STOP_STRING_CHARACTERS_MAX} characters")
        _require(
            len(self.stop) <= STOP_STRINGS_MAX, self, "stop", f"must be at most {STOP_STRINGS_MAX} strings"
        )
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            valid = _all_token_ids(getattr(self, name))
            _require(valid, self, name, "must be token ids (integers of 0 or more)")
        listed = self.logprob_token_ids
        valid = not listed or len(set(listed)) == len(listed) == self.logprobs
        _require(valid, self, "logprob_token_ids", f"must be as many tokens as logprobs ({self.logprobs})")


def _require(valid: bool, params: SamplingParams, name: str, requirement: str) -> None:
    if not valid:
        raise InvalidSamplingParams(name, getattr(params, name), requirement)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # an integer may be larger than any float


def _all_token_ids(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
