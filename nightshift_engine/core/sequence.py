"""A request inside the engine: its tokens, how far they are computed, and the blocks that hold them. Pure."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .kv_blocks import BlockTable, chain_digests, salted
from .request import PRIORITY_RANKS, Request
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from ..guidance.guide import Guide
    from ..text.thoughts import Thought
    from .speculation.lookup import OwnTokens


CAPACITY_MIN = 32


class TokenCounts:
    """Distinct tokens and their counts: `ids[i]` has occurred `counts[i]` times in the output.

    Tokens of the prompt are listed with a count of 0 as long as the output does not repeat them.
    """

    __slots__ = ("_counts", "_ids", "_place")

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._place = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        capacity = max(CAPACITY_MIN, 2 * len(self._place))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._counts = np.zeros(capacity, dtype=np.float32)
        self._ids[: len(self._place)] = list(self._place)
        for token in output:
            self.add(token)

    @property
    def ids(self) -> NDArray[np.int64]:
        """`[distinct tokens]`; a view that the next `add` may leave behind."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """`[distinct tokens]`, in the order of `ids`; a view that the next `add` may change."""
        return self._counts[: len(self._place)]

    def look_up(self, token: int) -> tuple[int, float]:
        """The place of a listed token in `ids`, and its count."""
        place = self._place[token]
        return place, float(self._counts[place])

    def add(self, token: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
        self._counts[place] += 1

    def after(self, tokens: Iterable[int]) -> TokenCounts:
        """The counts as they would be with these tokens besides."""
        counts = TokenCounts.__new__(TokenCounts)
        counts._place = dict(self._place)
        counts._ids, counts._counts = self._ids.copy(), self._counts.copy()
        for token in tokens:
            counts.add(token)
        return counts


class SampledRow(Protocol):
    """A row of logits as sampling needs it: that of a sequence, or of a token drafted for one."""

    @property
    def sampling(self) -> SamplingParams: ...

    @property
    def seed(self) -> int: ...

    @property
    def guide(self) -> Guide | None: ...

    @property
    def thought(self) -> Thought | None: ...

    @property
    def is_steered(self) -> bool:
        """Whether the tokens that may come next depend on the last one, also while it is only promised."""

    @property
    def is_guided_next(self) -> bool:
        """Whether a grammar decides about the next token: a thought follows none."""

    @property
    def next_output_index(self) -> int:
        """The index of the output token that is sampled next, counted from 0."""

    @property
    def token_ids(self) -> array[int]:
        """Tokens known to the host; they grow from step to step."""

    @property
    def token_counts(self) -> TokenCounts:
        """Only with penalties."""

    @property
    def num_promised(self) -> int: ...

    @property
    def promised_row(self) -> int: ...


BLOCK_ROW_MIN = 8


class Sequence:
    """One request on its way through the engine.

    tokens   0 ......... cached ......... computed ......... num_tokens
             |  KV shared  |  KV our own  |  to be computed  |
    A sequence that decodes has exactly one token to be computed: the last one sampled.

    A token may be promised: a step in flight will bring it, and the next one can be planned and launched
    without its value being known here. A promised token counts in `num_tokens`, but is no output yet.
    """

    __slots__ = (
        "adapter",
        "adapter_digest",
        "adapter_slot",  # while it runs; -1: it has no adapter
        "admission_due",
        "block_digests",
        "block_row",  # the first of `block_rows`
        "block_rows",
        "counts_tokens",
        "flow",
        "group",
        "guide",  # only for sequences with a grammar, once it is compiled
        "id",
        "lookup",  # only for sequences for which tokens are drafted
        "num_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_computed_tokens_max",
        "num_promised",
        "num_prompt_tokens",
        "num_to_score",
        "num_tokens_max",
        "promised_row",
        "protected_until_tokens",
        "request",
        "sampling",
        "seed",
        "source_slots",
        "tables",
        "thought",
        "token_counts",  # kept only for sequences with penalties
        "token_ids",
        "urgency",
        "yields_from_tokens",
    )

    def __init__(
        self,
        request: Request,
        *,
        arrival: int,
        num_tokens_max: int,
        num_groups: int = 1,
        block_size: int = 1,
        adapter_digest: str = "",
    ) -> None:
        """`num_groups` of layers have a table of blocks each, of `block_size` tokens."""
        self.request = request
        self.id = request.id
        self.adapter = request.adapter
        self.adapter_digest = adapter_digest
        self.adapter_slot = -1
        self.flow = request.flow
        self.group = request.group
        self.guide: Guide | None = None
        self.thought: Thought | None = None  # of a request that parts it
        self.lookup: OwnTokens | None = None
        self.sampling = request.sampling
        # Smaller is more urgent. The arrival never changes, so a preempted sequence goes back to its place.
        self.urgency = (PRIORITY_RANKS[request.priority], arrival)
        self.source_slots = request.source_slots(block_size)
        self.token_ids = array("q", request.source_token_ids)
        if self.source_slots:  # what fills up the source's last block counts, and is never read
            self.token_ids.extend([request.prompt_token_ids[0]] * (self.source_slots - len(self.token_ids)))
        self.token_ids.extend(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        # Places whose logits score the token after them.
        self.num_to_score = self.num_prompt_tokens - 1 if request.prompt_logprobs is not None else 0
        self.token_ids.extend(request.output_token_ids)
        self.num_tokens_max = num_tokens_max
        self.num_computed_tokens = 0
        self.num_promised = 0
        self.promised_row = 0  # of the last promised token, among those its step samples
        self.num_computed_tokens_max = 0  # the most there ever were; fewer now means computing again
        self.num_cached_tokens: int | None = None  # None until first admitted
        self.admission_due: int | None = None  # the admission at which it comes first, once it waits
        self.protected_until_tokens = 0  # with fewer tokens, more urgent classes cannot preempt it
        self.yields_from_tokens = 0  # with fewer tokens, it does not yield to another flow of its class
        # Changed by `add_blocks`, `skip_blocks` and `drop_blocks` only, and `block_rows` with them: a row per
        # group, of its blocks by index, then zeros. Before the first held there is the first held, so that
        # what reads whole tiles of keys, and masks them, never reads another sequence's.
        self.tables = [BlockTable() for _ in range(num_groups)]
        self.num_blocks = 0  # to the end of the shortest table
        self.block_rows: NDArray[np.int32] = np.zeros((num_groups, BLOCK_ROW_MIN), dtype=np.int32)
        self.block_row: NDArray[np.int32] = self.block_rows[0]
        self.block_digests: list[bytes] = []
        self.seed = request.sampling.seed if request.sampling.seed is not None else seed_from_id(request.id)
        self.counts_tokens = request.sampling.has_penalties
        if self.counts_tokens:
            # Only the penalty on repetition looks at the prompt.
            counted = request.prompt_token_ids if request.sampling.repetition_penalty != 1.0 else ()
            self.token_counts = TokenCounts(counted, request.output_token_ids)

    @property
    def rank(self) -> int:
        return self.urgency[0]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_promised

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def next_output_index(self) -> int:
        """The index of the output token that is sampled next, counted from 0."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        num_tokens = len(self.token_ids) + self.num_promised
        if self.num_promised and num_tokens >= self.num_tokens_max:
            return 0  # the promised token is the last
        return num_tokens - self.num_computed_tokens

    @property
    def is_full(self) -> bool:
        """Has as many tokens as it may ever have."""
        return len(self.token_ids) >= self.num_tokens_max

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :].tolist()

    @property
    def is_steered(self) -> bool:
        """Whether the tokens that may come next depend on the last one, also while it is only promised."""
        thought = self.thought
        return self.guide is not None or (thought is not None and thought.may_force(self.num_promised))

    @property
    def is_guided_next(self) -> bool:
        """Whether a grammar decides about the next token: a thought follows none."""
        thought = self.thought
        return self.guide is not None and (thought is None or thought.is_over or thought.may_begin)

    @property
    def may_be_drafted(self) -> bool:
        """Whether tokens may be drafted: not in a thought with a limit, or before a guided answer."""
        thought = self.thought
        return thought is None or thought.is_over or not (self.guide is not None or thought.has_budget)

    def promise(self, row: int) -> None:
        """A step has been launched that samples the next token, as the `row`-th of its tokens."""
        self.num_promised += 1
        self.promised_row = row

    def append(self, token: int) -> None:
        self.token_ids.append(token)
        if self.counts_tokens:
            self.token_counts.add(token)

    @property
    def blocks(self) -> list[int]:
        """All blocks held, group after group. Not to be changed."""
        if len(self.tables) == 1:
            return self.tables[0].blocks
        return [block for table in self.tables for block in table.blocks]

    def add_blocks(self, blocks: Seq[int], group: int = 0) -> None:
        """Holds these too, after those held already in this group."""
        if not blocks:
            return
        table = self.tables[group]
        start, stop = table.end, table.end + len(blocks)
        self.widen_block_rows(stop)
        self.block_rows[group, start:stop] = blocks
        if not table.blocks:
            self.block_rows[group, : table.first] = blocks[0]
        table.blocks += blocks
        self.num_blocks = min(table.end for table in self.tables)

    def skip_blocks(self, group: int, first: int) -> list[int]:
        """Holds none before the `first`-th in this group; returns those that were held."""
        table = self.tables[group]
        if first <= table.first:
            return []
        passed = table.blocks[: first - table.first]
        del table.blocks[: first - table.first]
        table.first = first
        self.widen_block_rows(first)
        self.block_rows[group, :first] = table.blocks[0] if table.blocks else 0
        self.num_blocks = min(table.end for table in self.tables)
        return passed

    def drop_blocks(self, num_kept: int = 0) -> list[int]:
        """Holds the first `num_kept` of each group only, if 0 none at all; returns the others."""
        dropped = []
        for table in self.tables:
            count = max(0, num_kept - table.first)
            dropped += table.blocks[count:]
            del table.blocks[count:]
            if num_kept == 0:
                table.first = 0
            assert table.first <= num_kept, "what is kept begins behind its end"
        self.block_rows[:, num_kept:] = 0
        self.num_blocks = min(table.end for table in self.tables)
        return dropped

    def drop_blocks_from(self, group: int, end: int) -> list[int]:
        """Holds none from the `end`-th on in this group; returns those that were held."""
        table = self.tables[group]
        count = max(0, end - table.first)
        dropped = table.blocks[count:]
        del table.blocks[count:]
        self.block_rows[group, table.end :] = 0
        self.num_blocks = min(table.end for table in self.tables)
        return dropped

    def widen_block_rows(self, width: int) -> None:
        """Makes room for at least `width` blocks in `block_rows`, if there is not."""
        groups, old = self.block_rows.shape
        if width <= old:
            return
        widened = np.zeros((groups, max(width, 2 * old)), dtype=np.int32)
        widened[:, :old] = self.block_rows
        self.block_rows, self.block_row = widened, widened[0]

    def digests(self, count: int, block_size: int, root: bytes) -> list[bytes]:
        """Digests of the first `count` full blocks, computed once and kept: tokens never change.

        `root` is the pool's; the request's salt and adapter follow it.
        """
        assert count * block_size <= len(self.token_ids), f"{self.id}: block {count} is not full"
        known = self.block_digests
        if len(known) < count:
            tokens = self.token_ids[len(known) * block_size : count * block_size]
            parent = known[-1] if known else salted(root, self.request.cache_salt, self.adapter_digest)
            known += chain_digests(parent, tokens, block_size)
        return known[:count]


def urgency(sequence: Sequence) -> tuple[int, int]:
    """A key that sorts the most urgent first."""
    return sequence.urgency


def seed_from_id(request_id: str) -> int:
    """A seed that depends on nothing but the id, so it survives a move to another machine."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")
