"""Drafted tokens as rows of a step: computed like a token of another sequence, sampled by what is before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from ..sequence import Sequence, TokenCounts

if TYPE_CHECKING:
    from ...guidance.guide import Guide


class DraftedRow:
    """One drafted token, and the state of its sequence after it, as sampling needs it (`SampledRow`)."""

    __slots__ = ("guide", "next_output_index", "sampling", "seed", "token", "token_counts", "token_ids")

    num_promised = 0
    promised_row = 0
    thought = None  # none that decides about a token: `Sequence.may_be_drafted`

    def __init__(self, sequence: Sequence, before: Seq[int], token: int, guide: Guide | None) -> None:
        """`before` are the drafted tokens before it; `guide` is the state of a grammar after it."""
        self.token = token
        self.guide = guide
        self.sampling = sequence.sampling
        self.seed = sequence.seed
        self.next_output_index = sequence.next_output_index + len(before) + 1
        self.token_ids: array[int] = sequence.token_ids
        if sequence.counts_tokens:
            self.token_counts: TokenCounts = sequence.token_counts.after([*before, token])

    @property
    def is_steered(self) -> bool:
        return self.guide is not None

    @property
    def is_guided_next(self) -> bool:
        return self.guide is not None


def drafted_rows(sequence: Sequence, tokens: Seq[int], rows: Seq[DraftedRow] = ()) -> list[DraftedRow]:
    """Rows of drafted tokens after `rows`, up to the first that a grammar does not allow or that ends it."""
    before, guide = [row.token for row in rows], rows[-1].guide if rows else sequence.guide
    guides: Seq[Guide | None] = [None] * len(tokens) if guide is None else guide.ahead(tokens)
    return [
        DraftedRow(sequence, [*before, *tokens[:index]], tokens[index], guide)
        for index, guide in enumerate(guides)
    ]
