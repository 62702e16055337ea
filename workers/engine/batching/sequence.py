"""A request inside the engine: its tokens, how far they are computed, and the blocks that hold them.

Pure bookkeeping. Does not know how tokens are chosen or turned into text, or where KV memory lies.
"""

from __future__ import annotations

import hashlib

from ..request import PRIORITY_RANKS, Request
from .kv_blocks import chain_digest
from .token_counts import TokenCounts


class Sequence:
    """One request on its way through the engine.

    tokens   0 ......... cached ......... computed ......... num_tokens
             |  KV shared  |  KV our own  |  to be computed  |
    A sequence that decodes has exactly one token to be computed: the last one sampled.
    """

    __slots__ = (
        "block_digests",
        "blocks",
        "id",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_tokens_max",
        "request",
        "sampling",
        "seed",
        "token_counts",  # kept only for sequences with penalties
        "token_ids",
        "urgency",
    )

    def __init__(self, request: Request, *, arrival: int, num_tokens_max: int) -> None:
        self.request = request
        self.id = request.id
        self.sampling = request.sampling
        # Smaller is more urgent. The arrival never changes, so a preempted sequence goes back to its place.
        self.urgency = (PRIORITY_RANKS[request.priority], arrival)
        self.token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_tokens_max = num_tokens_max
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None  # None until first admitted
        self.blocks: list[int] = []
        self.block_digests: list[bytes] = []
        self.seed = request.sampling.seed if request.sampling.seed is not None else seed_from_id(request.id)
        if request.sampling.has_penalties:
            # Only the penalty on repetition looks at the prompt.
            counted = request.prompt_token_ids if request.sampling.repetition_penalty != 1.0 else ()
            self.token_counts = TokenCounts(counted, request.output_token_ids)

    @property
    def rank(self) -> int:
        return self.urgency[0]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def append(self, token: int) -> None:
        self.token_ids.append(token)
        if self.sampling.has_penalties:
            self.token_counts.add(token)

    def digests(self, count: int, block_size: int, root: bytes) -> list[bytes]:
        """Digests of the first `count` full blocks, computed once and kept: tokens never change."""
        assert count * block_size <= self.num_tokens, f"{self.id}: block {count} is not full"
        while len(self.block_digests) < count:
            start = len(self.block_digests) * block_size
            parent = self.block_digests[-1] if self.block_digests else root
            self.block_digests.append(chain_digest(parent, self.token_ids[start : start + block_size]))
        return self.block_digests[:count]


def seed_from_id(request_id: str) -> int:
    """A seed that depends on nothing but the id, so it survives a move to another machine."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")
