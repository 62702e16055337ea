"""How a source and what the decoder reads first become one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seq2seqPrompt:
    """Token ids: those of the source, filled up to whole blocks, then those that the decoder starts with."""

    token_ids: tuple[int, ...]
    source_slots: int


def seq2seq_prompt(source: Sequence[int], start: Sequence[int], block_size: int) -> Seq2seqPrompt:
    """The output's keys and values then begin a block of their own."""
    missing = -len(source) % block_size
    return Seq2seqPrompt((*source, *[start[0]] * missing, *start), len(source) + missing)
