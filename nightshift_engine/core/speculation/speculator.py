"""Drafts tokens for sequences that decode, where that pays. Decides; the engine computes and compares."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Protocol

from ..sequence import Sequence
from ..steps import Chunk, StepShape, StepTimeModel, step_shape
from .lengths import Acceptance, StepCost, draft_lengths, steps_to_rest
from .lookup import MATCH_MAX, OwnTokens
from .outputs import JobOutputs
from .rows import DraftedRow, drafted_rows

DRAFT_TOKENS_MAX = 16
"""Tokens drafted for one sequence in one step."""
CONTEXTS_MAX = 1 << 18
"""Contexts kept of all jobs' outputs, at about 150 bytes each. The job that drafted longest ago goes."""
STREAMS_MAX = 64
"""Jobs, and tenants' online requests, whose acceptance is remembered."""
TIME_SHARE_MAX = 0.01
"""Share of the time that drafting may take while nothing comes of it."""
REST_STEPS_MAX = 256
LEARNED_AT_ONCE_MAX = 32
"""Tokens of one output that its job learns in one step, the last ones: or a rest would save nothing."""
MODEL_SEQUENCES_MAX = 4
"""Most sequences of a step in which a draft model drafts. On a CPU a good one gained 2.2 times the speed with
4, 1.1 to 1.4 times with 8, where a wrong one cost up to 6 % in some runs."""
PROBE_STEPS = 256
"""Steps in a row without drafts after which a few tokens are drafted whatever is expected of them."""
PROBE_TOKENS = 4

MATCHES = range(MATCH_MAX + 1)
NUM_LEADS = 4  # leads of 1, 2 to 3, 4 to 7, 8 and more
SHORT_LEADS = len(MATCHES)
LONG_LEADS = SHORT_LEADS + NUM_LEADS
FORCED = LONG_LEADS + NUM_LEADS
BY_MODEL = FORCED + 1
GUESSES = (
    *(0.3 + 0.05 * length for length in MATCHES),
    *(0.2, 0.4, 0.6, 0.7),
    *(0.4, 0.6, 0.75, 0.85),
    0.95,
    0.7,
)
"""Shares of drafted tokens accepted, by kind, before any is known: by the length of a match in the sequence,
by the lead of a candidate after a short and a long context, by the grammar, and by the draft model."""


class DraftModel(Protocol):
    """A smaller model that drafts; `engine/draft_model.py` has the real one."""

    times: StepTimeModel
    """Times of its passes."""
    seconds: float
    """Seconds of its passes for the drafts asked for last."""

    def num_unread(self, sequence: Sequence) -> int:
        """Known tokens that it has to read before it drafts."""

    def draft(self, wanted: Seq[tuple[Sequence, Seq[int], int]]) -> list[list[DraftedRow]]:
        """Drafts for sequences: these tokens, and then its own up to so many in all."""


@dataclass(slots=True)
class _Draft:
    """Tokens that may follow a sequence, and their kinds. A draft model makes those with a kind alone."""

    tokens: Seq[int] = ()
    kinds: Seq[int] = ()

    def shares(self, acceptance: Acceptance) -> list[float]:
        return [acceptance.shares[kind] for kind in self.kinds]


@dataclass(slots=True)
class _Stream:
    """The rows of one job, or the online requests of one salt: nothing passes from one to another."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(GUESSES))
    outputs: JobOutputs = field(default_factory=JobOutputs)


class Speculator:
    """Drafts what a grammar forces, from a sequence's tokens, from the outputs of its job, and by a model."""

    def __init__(self, model: DraftModel | None = None) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self._streams: OrderedDict[tuple[str, str | None], _Stream] = OrderedDict()  # the last used last
        self._times = StepTimeModel()
        self._model = model
        self._active: DraftModel | None = None  # in the step being planned
        self._cost: StepCost | None = None  # of that step; None: not known yet
        self._row_s = 0.0  # its time by sequence
        self._price = 0.0  # tokens without drafts in the time that the draft model needs for one
        self._attempt_s = 0.0
        self._rest = 0
        self._num_without = 0
        self._kinds: dict[Sequence, Seq[int]] = {}
        self._is_full = False

    @property
    def is_due(self) -> bool:
        """Whether the next step is to have drafts, for which all tokens must be known."""
        return self._rest == 0

    def draft(self, chunks: Seq[Chunk], room: int) -> list[tuple[Chunk, list[DraftedRow]]]:
        """Drafts for sequences of a step that decode, with at most `room` tokens in all."""
        self._kinds = {}
        if self._rest > 0:
            self._rest -= 1
            return []
        self._make_room()
        self._active = self._model if len(chunks) <= MODEL_SEQUENCES_MAX else None
        decoding = [chunk for chunk in chunks if _decodes(chunk)]
        able, shape = [chunk for chunk in decoding if chunk.sequence.may_be_drafted], step_shape(decoding)
        self._cost, self._row_s, self._price = StepCost.predict(self._times, shape, self._attempt_s), 0.0, 0.0
        if self._active is not None and self._cost is not None and able:
            self._row_s = self._cost.step_s / shape.sequences
            if self._num_without < PROBE_STEPS:
                self._price = _pass_s(self._active, able) / self._row_s
        proposals = [(chunk, self._propose(chunk.sequence)) for chunk in able]
        proposals = [(chunk, draft) for chunk, draft in proposals if draft.kinds]
        wanted = []
        for (chunk, draft), length in zip(proposals, self._lengths(shape, proposals), strict=True):
            length = min(length, room)
            room -= length
            wanted.append((chunk.sequence, draft.tokens[:length], length))
            self._kinds[chunk.sequence] = draft.kinds
        if self._active is not None:
            made = self._active.draft(wanted)
        else:
            made = [drafted_rows(sequence, tokens) for sequence, tokens, _ in wanted]
        drafts = [(chunk, rows) for (chunk, _), rows in zip(proposals, made, strict=True) if rows]
        self._num_without = 0 if drafts else self._num_without + bool(able if self._active else proposals)
        if not drafts:
            step_s = self._times.predict_s(step_shape(chunks))
            self._rest = steps_to_rest(self._attempt_s, step_s, TIME_SHARE_MAX, REST_STEPS_MAX)
        return drafts

    def note_attempt(self, seconds: float) -> None:
        """Learns what it takes to draft for a step, with what the device waited for it."""
        if self._active is not None:
            seconds -= self._active.seconds  # counted by token
        self._attempt_s += 0.1 * (seconds - self._attempt_s)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learns from the time of a step whose sequences all decode."""
        self._times.observe(shape, seconds)

    def judge(self, sequence: Sequence, num_drafted: int, num_accepted: int, *, is_rejected: bool) -> None:
        """Learns which drafted tokens were the model's own; `is_rejected`: the one after these was not."""
        acceptance = self._stream(sequence).acceptance
        kinds = self._kinds[sequence]
        for kind in kinds[:num_accepted]:
            acceptance.note(kind, is_hit=True)
        if is_rejected:
            acceptance.note(kinds[num_accepted], is_hit=False)
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted

    def _lengths(self, shape: StepShape, proposals: Seq[tuple[Chunk, _Draft]]) -> list[int]:
        if self._num_without >= PROBE_STEPS:
            return [PROBE_TOKENS, *[0] * len(proposals)][: len(proposals)]
        if self._cost is None:
            return [PROBE_TOKENS] * len(proposals)
        shares = [draft.shares(self._stream(chunk.sequence).acceptance) for chunk, draft in proposals]
        made_s: list[float] = []
        if self._active is not None:
            opens = [len(draft.tokens) < len(draft.kinds) for _, draft in proposals]
            pass_s = _pass_s(self._active, [chunk for chunk, _ in compress(proposals, opens)])
            made_s = [pass_s * is_open for is_open in opens]
        return draft_lengths(shares, shape.sequences, self._cost, made_s)

    def _propose(self, sequence: Sequence) -> _Draft:
        """Tokens that the grammar forces, and after them the draft of which most is expected."""
        most = min(DRAFT_TOKENS_MAX, sequence.num_tokens_max - 1 - sequence.num_tokens)
        if most <= 0:
            return _Draft()
        stream = self._stream(sequence)
        own, tokens = self._learn(sequence, stream), sequence.token_ids
        forced = sequence.guide.forced()[:most] if sequence.guide is not None else []
        if forced:
            tokens, most = tokens + array("q", forced), most - len(forced)
        drafts = [_of_own(own, tokens, most)]
        if sequence.group is not None:
            drafts.append(_of_job(stream.outputs, tokens, most))
        best = max(drafts, key=lambda draft: _expected(draft.shares(stream.acceptance)))
        if self._active is not None:
            best = self._or_by_model(self._active, sequence, best, most)
        return _Draft([*forced, *best.tokens], [*[FORCED] * len(forced), *best.kinds])

    def _or_by_model(self, model: DraftModel, sequence: Sequence, best: _Draft, most: int) -> _Draft:
        """The draft model's draft where more is expected of it than it costs and than of `best`, and where
        reading takes no longer than drafts would have saved on the output so far.
        """
        acceptance, draft = self._stream(sequence).acceptance, _Draft(kinds=[BY_MODEL] * most)
        gain = _expected(draft.shares(acceptance), self._price)
        if gain <= _expected(best.shares(acceptance)):
            return best
        num_unread = model.num_unread(sequence)
        read_s = model.times.predict_s(StepShape(num_unread)) - model.times.predict_s(StepShape())
        saved_s = sequence.num_output_tokens * self._row_s * gain / (1 + gain)
        return best if num_unread > 1 + DRAFT_TOKENS_MAX and read_s > saved_s else draft

    def _learn(self, sequence: Sequence, stream: _Stream) -> OwnTokens:
        """Takes in the tokens that have come since; returns the sequence's own."""
        if sequence.lookup is None:
            sequence.lookup = OwnTokens()
        own: OwnTokens = sequence.lookup
        if sequence.group is not None:
            num_tokens = len(sequence.token_ids)
            start = max(own.num_taken, sequence.num_prompt_tokens, num_tokens - LEARNED_AT_ONCE_MAX)
            stream.outputs.learn(sequence.token_ids, start, is_full=self._is_full)
        own.extend(sequence.token_ids)
        return own

    def _make_room(self) -> None:
        """Lets jobs go until there is room for contexts. The last one keeps its own, and takes no more."""
        kept = sum(len(stream.outputs) for stream in self._streams.values())
        while kept >= CONTEXTS_MAX and len(self._streams) > 1:
            _, stream = self._streams.popitem(last=False)
            kept -= len(stream.outputs)
        self._is_full = kept >= CONTEXTS_MAX

    def _stream(self, sequence: Sequence) -> _Stream:
        key = (sequence.request.cache_salt, sequence.group)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
            if len(self._streams) > STREAMS_MAX:
                self._streams.popitem(last=False)
        self._streams.move_to_end(key)
        return stream


def _decodes(chunk: Chunk) -> bool:
    return chunk.num_tokens == 1 and chunk.is_last and not chunk.sequence.num_promised


def _pass_s(model: DraftModel, chunks: Seq[Chunk]) -> float:
    """Seconds of its pass over these sequences, by sequence."""
    return model.times.predict_s(step_shape(chunks)) / max(1, len(chunks))


def _of_own(own: OwnTokens, tokens: array[int], most: int) -> _Draft:
    followed = own.follow(tokens, most)
    if followed is None:
        return _Draft()
    length, drafted = followed
    return _Draft(drafted, [min(length + n, MATCH_MAX) for n in range(len(drafted))])


def _of_job(outputs: JobOutputs, tokens: array[int], most: int) -> _Draft:
    followed = [*islice(outputs.follow(tokens), most)]
    return _Draft(
        [token for token, _, _ in followed], [_kind(is_long, lead) for _, is_long, lead in followed]
    )


def _kind(is_long: bool, lead: int) -> int:
    return (LONG_LEADS if is_long else SHORT_LEADS) + min(lead.bit_length(), NUM_LEADS) - 1


def _expected(shares: Seq[float], price: float = 0.0) -> float:
    """Tokens that will be accepted, less the price of each that is worth it."""
    expected, chance = 0.0, 1.0
    for share in shares:
        chance *= share
        if chance <= price:
            break
        expected += chance - price
    return expected
