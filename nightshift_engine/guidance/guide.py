"""The state of one sequence in its grammar, by its output tokens, and the tokens allowed next."""

import os
from collections.abc import Sequence as Seq
from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from ..errors import GrammarFailed

WORD_BITS = 32
ROWS_ALONE_MAX = 8
"""Rows that are computed faster than threads are woken."""
THREADS_MAX = 8
"""Threads that compute the masks of one step."""


class Guide:
    """The state of one sequence. Used on the engine's thread only."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def is_finished(self) -> bool:
        """The output is whole, and nothing can follow."""
        return self.matcher.is_stopped()

    def accept(self, token: int) -> None:
        """Goes on past a token. Raises `GrammarFailed` if it is not allowed, or the grammar is too costly."""
        if not self.matcher.consume_token(token):
            raise GrammarFailed(self.matcher.get_error().partition("\n")[0])

    def allows_any(self, token_ids: Seq[int], vocab_size: int) -> bool:
        """Whether one of these may come next, of a vocabulary of so many."""
        bits = np.unpackbits(allowed_tokens([self], vocab_size)[0].view(np.uint8), bitorder="little")
        return bool(bits[list(token_ids)].any())

    def forced(self) -> list[int]:
        """Tokens of the only text that can follow, as the tokenizer writes it; none if there are several."""
        return self.matcher.compute_ff_tokens()

    def ahead(self, tokens: Seq[int]) -> list["Guide"]:
        """States after each of `tokens`, up to the first that is not allowed or makes the output whole."""
        states: list[Guide] = []
        for token in tokens:
            matcher = (states[-1].matcher if states else self.matcher).deep_copy()
            if matcher.try_consume_tokens([token]) == 0 or matcher.is_stopped():
                break
            states.append(Guide(matcher))
        return states


def allowed_tokens(guides: Seq[Guide], vocab_size: int) -> NDArray[np.int32]:
    """Tokens that may come next, as bits: `[guides, vocab_size / 32, rounded up]`, lowest bit first.

    `vocab_size` is that of the logits. Bits of ids that the tokenizer does not have are 0.
    """
    masks = np.zeros((len(guides), -(-vocab_size // WORD_BITS)), dtype=np.int32)
    if len(guides) <= ROWS_ALONE_MAX:
        for row, guide in enumerate(guides):
            fill_next_token_bitmask(guide.matcher, masks, row)
    else:
        rows = [(guide.matcher, row) for row, guide in enumerate(guides)]
        fill_next_token_bitmask_par(_executor(), rows, masks)
    return masks


@cache
def _executor() -> LLExecutor:
    return LLExecutor(num_threads=min(THREADS_MAX, len(os.sched_getaffinity(0))))
