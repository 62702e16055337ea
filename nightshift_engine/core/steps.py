"""Steps: the chunks that one computes, its limits, its time budget, and the model that predicts its time."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from .sequence import Sequence
from .speculation.rows import DraftedRow

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
"""Units of the features, chosen so that all are of the same order."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The quantities that the time of a step depends on."""

    tokens: int = 0
    kv_tokens: int = 0
    """Tokens whose KV is read: of each chunk, all up to its last."""
    sequences: int = 0

    def __add__(self, other: StepShape) -> StepShape:
        return StepShape(
            self.tokens + other.tokens, self.kv_tokens + other.kv_tokens, self.sequences + other.sequences
        )


class StepTimeModel:
    """Predicts seconds per step from how long steps took; nothing until enough steps have been seen.

        seconds ≈ a + b · tokens + c · KV tokens read + d · sequences

    Fitted as steps are measured: least squares over all of them, older ones counting less and less,
    coefficients never negative, as more work never takes less time.
    """

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
        """Learns from one measured step."""
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
        return sum(
            coefficient * feature
            for coefficient, feature in zip(self.coefficients, _features(shape), strict=True)
        )

    def tokens_within(self, shape: StepShape, kv_tokens_before: int, seconds: float) -> int | None:
        """Number of tokens of one more sequence, with `kv_tokens_before` computed, that fit into `seconds`.

        None: any number, as far as is known. 0 or less: the step is too long without them.
        """
        _, per_token, per_kv_token, _ = (
            coefficient / unit for coefficient, unit in zip(self.coefficients, UNITS, strict=True)
        )
        if not self.is_trusted or per_token + per_kv_token <= 0:
            return None
        before = self.predict_s(shape + StepShape(0, kv_tokens_before, 1))
        return int((seconds - before) / (per_token + per_kv_token))

    def _without_excess(self, features: list[float], seconds: float) -> float:
        """The measured time, brought closer to the expected one if it is far out."""
        expected = sum(
            coefficient * feature for coefficient, feature in zip(self.coefficients, features, strict=True)
        )
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


MIN_BATCHED_TOKENS = 16
"""Tokens below which halving a step saves too little."""
STEPS_BEFORE_GROWING = 64
STEPS_BEFORE_GROWING_MAX = 8192


class StepLimits:
    """Limits of a step: running out of memory halves the configured ones, success doubles them again."""

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._configured = (max_num_seqs, max_num_batched_tokens)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._steps_succeeded = 0
        self._steps_before_growing = STEPS_BEFORE_GROWING
        self._has_grown = False

    @property
    def is_minimal(self) -> bool:
        """Whether nothing is left to shrink: a step is a few tokens of one sequence."""
        return self.max_num_seqs == 1 and self.max_num_batched_tokens <= MIN_BATCHED_TOKENS

    @property
    def is_reduced(self) -> bool:
        return (self.max_num_seqs, self.max_num_batched_tokens) != self._configured

    def shrink(self, num_tokens: int, num_sequences: int) -> bool:
        """Shrinks the limits after a step of this size ran out of memory. False: they were minimal
        already.
        """
        if self.is_minimal:
            return False
        if self._has_grown:  # growing was premature
            self._steps_before_growing = min(2 * self._steps_before_growing, STEPS_BEFORE_GROWING_MAX)
            self._has_grown = False
        self._steps_succeeded = 0
        if self.max_num_batched_tokens > MIN_BATCHED_TOKENS:
            smaller = min(num_tokens, self.max_num_batched_tokens) // 2
            self.max_num_batched_tokens = max(MIN_BATCHED_TOKENS, smaller)
        else:
            self.max_num_seqs = max(1, min(num_sequences, self.max_num_seqs) // 2)
        return True

    def grow_after_success(self) -> None:
        """Grows the limits after a step that fitted."""
        if not self.is_reduced:
            return
        self._steps_succeeded += 1
        if self._steps_succeeded < self._steps_before_growing:
            return
        self._steps_succeeded = 0
        self._has_grown = True
        seqs, tokens = self._configured
        if self.max_num_seqs < seqs:
            self.max_num_seqs = min(seqs, 2 * self.max_num_seqs)
        else:
            self.max_num_batched_tokens = min(tokens, 2 * self.max_num_batched_tokens)


MIN_CHUNK_TOKENS = 16
"""Tokens of bulk prompts in a step whose time is spent already."""
CHUNK_TIME_SHARE = 1.0
"""Time that bulk prompts may add to a step whose decoding rows alone take longer than the budget: so many
rows that decode also need a flow of new ones, or few are left and the step is as long as before."""
SECONDS_REMEMBERED = 2.0
"""Time of steps after the last interactive sequence during which another one is expected. Time, not
steps: where these are slow, few of them are many seconds."""


class StepBudget:
    """A time per step while there is interactive traffic; None: never. Bulk always gets a small part."""

    def __init__(self, budget_ms: float | None) -> None:
        self._budget_s = budget_ms / 1000 if budget_ms is not None else None
        self.times = StepTimeModel()
        self._seconds_to_remember = 0.0
        self.is_in_force = False
        self._planned = _Sum()
        self._decoding = _Sum()  # bulk rows that decode, not planned yet
        self._has_interactive_prompt = False
        self._has_bulk_prompt = False

    def start_step(self, has_interactive: bool, running_bulk: Iterable[Sequence]) -> None:
        """Begins to plan a step."""
        if self._budget_s is None:
            return
        if has_interactive:
            self._seconds_to_remember = SECONDS_REMEMBERED
        self.is_in_force = self._seconds_to_remember > 0 and self.times.is_trusted
        self._planned, self._decoding = _Sum(), _Sum()
        self._has_interactive_prompt = self._has_bulk_prompt = False
        if self.is_in_force:
            rows = [sequence.num_tokens for sequence in running_bulk if _is_decoding(sequence)]
            self._decoding.add(len(rows), sum(rows), len(rows))

    def allow(self, sequence: Sequence, wanted: int) -> int:
        """The number of the `wanted` next tokens of a sequence that this step has time for."""
        assert self._budget_s is not None, "in force without a budget"
        if sequence.rank == 0:
            return wanted
        if _is_decoding(sequence):
            is_late = self._has_interactive_prompt and self._predict_with(sequence) > self._budget_s
            return 0 if is_late else wanted
        limit_s, least = self._budget_s, 0
        if not self._has_interactive_prompt:
            limit_s = max(limit_s, (1 + CHUNK_TIME_SHARE) * self.times.predict_s(self._decoding.shape))
            least = 0 if self._has_bulk_prompt else MIN_CHUNK_TOKENS
        others = self._planned.shape + self._decoding.shape
        room = self.times.tokens_within(others, sequence.num_computed_tokens, limit_s)
        return wanted if room is None else min(wanted, max(room, least))

    def allow_drafted(self, sequence: Sequence, wanted: int) -> int:
        """The number of `wanted` drafted tokens that a step has time for besides; counts them as planned."""
        if not self.is_in_force:
            return wanted
        assert self._budget_s is not None, "in force without a budget"
        room = self.times.tokens_within(self._planned.shape, 0, self._budget_s)
        count = wanted if room is None or sequence.rank == 0 else max(0, min(wanted, room))
        self._planned.add(count, count, 0)
        return count

    def note(self, sequence: Sequence, num_tokens: int) -> None:
        """A sequence's tokens have been planned."""
        self._planned.add(num_tokens, sequence.num_computed_tokens + num_tokens, 1)
        if sequence.rank == 0:
            self._has_interactive_prompt |= not _is_decoding(sequence)
        elif _is_decoding(sequence):
            self._decoding.add(-1, -sequence.num_tokens, -1)
        else:
            self._has_bulk_prompt = True

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learns from a measured step."""
        if self._budget_s is not None:
            self.times.observe(shape, seconds)
            self._seconds_to_remember -= seconds

    def _predict_with(self, row: Sequence) -> float:
        return self.times.predict_s(self._planned.shape + StepShape(1, row.num_tokens, 1))


class _Sum:
    """A shape that grows row by row."""

    __slots__ = ("kv_tokens", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens = self.kv_tokens = self.sequences = 0

    @property
    def shape(self) -> StepShape:
        return StepShape(self.tokens, self.kv_tokens, self.sequences)

    def add(self, tokens: int, kv_tokens: int, sequences: int) -> None:
        self.tokens += tokens
        self.kv_tokens += kv_tokens
        self.sequences += sequences


def _is_decoding(sequence: Sequence) -> bool:
    return sequence.num_uncomputed_tokens == 1


@dataclass(slots=True, eq=False)  # not frozen: making one takes half the time, and every row needs one
class Chunk:
    """`num_tokens` tokens of one sequence to compute in this step, from its `num_computed_tokens` on.

    Those of `draft` are computed after them. Each has a row of logits, as the last known token has.
    """

    sequence: Sequence
    num_tokens: int
    draft: Seq[DraftedRow] = ()

    @property
    def is_last(self) -> bool:
        """Computes the sequence's last known token, so the next one can be sampled."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens

    @property
    def num_scored(self) -> int:
        """The number of its first tokens whose logits score the token after them."""
        return max(0, min(self.num_tokens, self.sequence.num_to_score - self.sequence.num_computed_tokens))


SCORED_TOKENS_MAX = 256
"""Prompt tokens that a step may score: each has a row of logits, as long as the vocabulary."""


class Draft:
    """A step being planned: whose tokens are in it, and how many more it may take."""

    def __init__(self, max_num_batched_tokens: int, budget: StepBudget, deferrals_max: int) -> None:
        """`deferrals_max`: how many sequences it may find to have a prefix that is being computed."""
        self.tokens_left = max_num_batched_tokens
        self.deferrals_left = deferrals_max
        self.scored_left = SCORED_TOKENS_MAX
        self.token_counts: dict[Sequence, int] = {}
        self.preempted: set[Sequence] = set()
        self.tried: set[Sequence] = set()
        """Set aside: there is no memory for them in this step."""
        self._budget = budget

    def tokens_for(self, sequence: Sequence) -> int:
        """The number of a sequence's next tokens that fit."""
        wanted = sequence.num_uncomputed_tokens
        if wanted > self.tokens_left:
            wanted = self.tokens_left
        if sequence.num_to_score:
            wanted = self.scorable(sequence, wanted)
        return self._budget.allow(sequence, wanted) if self._budget.is_in_force else wanted

    def scorable(self, sequence: Sequence, wanted: int) -> int:
        """The number of the `wanted` next tokens that fit by their rows of logits."""
        is_scored = sequence.num_to_score > sequence.num_computed_tokens
        return min(wanted, self.scored_left) if is_scored else wanted

    def put(self, sequence: Sequence, num_tokens: int) -> None:
        assert 0 < num_tokens <= self.tokens_left, f"{num_tokens} tokens, {self.tokens_left} left"
        if self._budget.is_in_force:
            self._budget.note(sequence, num_tokens)
        self.token_counts[sequence] = num_tokens
        self.tokens_left -= num_tokens
        if sequence.num_to_score:
            self.scored_left -= Chunk(sequence, num_tokens).num_scored

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out that has to go after all."""
        self.preempted.add(sequence)
        self.tokens_left += self.token_counts.pop(sequence, 0)


def step_shape(chunks: Iterable[Chunk]) -> StepShape:
    """The quantities that the time of a step depends on."""
    tokens = kv_tokens = sequences = 0
    for chunk in chunks:
        count = chunk.num_tokens + len(chunk.draft)
        tokens += count
        kv_tokens += chunk.sequence.num_computed_tokens + count
        sequences += 1
    return StepShape(tokens, kv_tokens, sequences)
