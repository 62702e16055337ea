"""How long a step will take, learned from how long steps took.

    seconds ≈ a + b · tokens + c · KV tokens read + d · sequences

Fitted as steps are measured: least squares over all of them, older ones counting less and less, coefficients
never negative (more work never takes less time). Knows no clock: the engine measures.
"""

from __future__ import annotations

from dataclasses import dataclass

FORGETTING = 0.995
"""Weight of a step relative to the next one: about the last 200 steps count."""
STEPS_UNTIL_TRUSTED = 8
"""Steps seen before anything is predicted; the first ones also pay for caches and for building kernels."""
OUTLIER_RATIO = 4.0
"""An error larger than so many usual errors counts as if it were just that large (Huber's rule)."""
SWEEPS = 2
"""Rounds of coordinate descent per measured step. Each starts where the last one ended."""
RIDGE = 1e-6
"""Keeps what a long run of equal steps does not tell where it was."""

UNITS = (1.0, 256.0, 16384.0, 64.0)
"""What counts as one of each feature, so that all are of the same order."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the time of a step depends on."""

    tokens: int = 0
    kv_tokens: int = 0
    """Tokens whose KV is read: of each chunk, all up to its last."""
    sequences: int = 0

    def __add__(self, other: StepShape) -> StepShape:
        return StepShape(
            self.tokens + other.tokens, self.kv_tokens + other.kv_tokens, self.sequences + other.sequences
        )


class StepTimeModel:
    """Predicts seconds per step. Nothing is predicted until enough steps have been seen."""

    def __init__(self) -> None:
        self.coefficients = [0.0] * len(UNITS)  # seconds per unit
        self._moments = [[0.0] * len(UNITS) for _ in UNITS]  # sum of weighted x xᵀ
        self._targets = [0.0] * len(UNITS)  # sum of weighted x · seconds
        self._usual_error = 0.0
        self._steps_seen = 0

    @property
    def is_trusted(self) -> bool:
        return self._steps_seen >= STEPS_UNTIL_TRUSTED

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from one measured step."""
        features = _features(shape)
        if self.is_trusted:
            seconds = self._without_excess(features, seconds)
        for row, left in enumerate(features):
            moments = self._moments[row]
            for column, right in enumerate(features):
                moments[column] = FORGETTING * moments[column] + left * right
            self._targets[row] = FORGETTING * self._targets[row] + left * seconds
        self._steps_seen += 1
        self._descend()

    def predict_s(self, shape: StepShape) -> float:
        """Expected seconds of a step of this shape; 0 while nothing is known."""
        if not self.is_trusted:
            return 0.0
        return sum(each * feature for each, feature in zip(self.coefficients, _features(shape), strict=True))

    def tokens_within(self, shape: StepShape, kv_tokens_before: int, seconds: float) -> int | None:
        """How many tokens of one more sequence, which has `kv_tokens_before` computed, fit into `seconds`.

        None: any number, as far as is known. 0 or less: the step is too long without them.
        """
        _, per_token, per_kv_token, _ = (
            each / unit for each, unit in zip(self.coefficients, UNITS, strict=True)
        )
        if not self.is_trusted or per_token + per_kv_token <= 0:
            return None
        before = self.predict_s(shape + StepShape(0, kv_tokens_before, 1))
        return int((seconds - before) / (per_token + per_kv_token))

    def _without_excess(self, features: list[float], seconds: float) -> float:
        """The measured time, brought closer to the expected one if it is far out."""
        expected = sum(each * feature for each, feature in zip(self.coefficients, features, strict=True))
        error = seconds - expected
        bound = OUTLIER_RATIO * max(self._usual_error, 0.02 * expected)
        error = min(max(error, -bound), bound)
        self._usual_error += 0.05 * (abs(error) - self._usual_error)
        return expected + error

    def _descend(self) -> None:
        """Non-negative least squares by coordinate descent on the normal equations."""
        now, moments = self.coefficients, self._moments
        before = list(now)
        for _ in range(SWEEPS):
            for index, row in enumerate(moments):
                others = sum(a * b for a, b in zip(row, now, strict=True)) - row[index] * now[index]
                pull = RIDGE * row[index] + RIDGE
                now[index] = max(
                    0.0, (self._targets[index] - others + pull * before[index]) / (row[index] + pull)
                )


def _features(shape: StepShape) -> list[float]:
    return [1.0, shape.tokens / UNITS[1], shape.kv_tokens / UNITS[2], shape.sequences / UNITS[3]]
