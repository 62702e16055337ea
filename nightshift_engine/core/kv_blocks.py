"""Blocks of KV memory: who holds them, and which hold tokens that another sequence may reuse. Pure."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class BlockTable:
    """Blocks `first` to `end` of a sequence, counted in blocks; those before `first` were given back."""

    __slots__ = ("blocks", "first")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.first = 0

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)

    def between(self, start: int, stop: int) -> tuple[int, list[int]]:
        """The blocks held of those from `start` to `stop`, and the index of the first of them."""
        start = max(start, self.first)
        return start, self.blocks[start - self.first : max(start, stop) - self.first]


DIGEST_BYTES = 16
"""Wide enough that two different prefixes never meet; a hit is therefore not compared token by token."""

NUM_KEPT_MIN = 64
"""Unreferenced blocks with content that are kept at the least, while there are fresh ones."""


def chain_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of a full block: what it holds, and everything before it (KV depends on all earlier tokens)."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=DIGEST_BYTES).digest()


def salted(root: bytes, cache_salt: str, adapter_digest: str = "") -> bytes:
    """The digest with which the chains of requests with this salt and adapter begin, so that no other request
    finds their blocks.
    """
    for salt, person in ((cache_salt, b"salt"), (adapter_digest, b"adapter")):
        if salt:
            root = hashlib.blake2b(root + salt.encode(), digest_size=DIGEST_BYTES, person=person).digest()
    return root


def chain_digests(parent: bytes, token_ids: array[int], block_size: int) -> list[bytes]:
    """Names of all full blocks of `token_ids`, an array of type "q", after a block named `parent`."""
    raw, size = token_ids.tobytes(), block_size * token_ids.itemsize
    digests: list[bytes] = []
    for start in range(0, len(raw) - size + 1, size):
        parent = hashlib.blake2b(parent + raw[start : start + size], digest_size=DIGEST_BYTES).digest()
        digests.append(parent)
    return digests


class BlockPool:
    """Reference-counted blocks; unreferenced ones keep their content until the space is needed.

    Each block is in exactly one of four states:

        held     one reference or more                   never taken
        blank    no reference, nothing worth keeping     taken first, last in first out
        cached   no reference, full, findable by digest  taken least recently used first
        fresh    never used                              taken while few blocks are cached, or none is

    A fresh block costs memory not touched before; a cached one may never be asked for again. So as many are
    cached as are held, and twice as many each time a block was asked for after it was taken.
    """

    def __init__(
        self, num_blocks: int, block_size: int, extra_key: bytes = b"", *, num_kept_min: int = NUM_KEPT_MIN
    ) -> None:
        """`extra_key` starts every chain: what KV depends on besides tokens, such as model and dtype."""
        assert num_blocks > 0, f"a pool of {num_blocks} blocks"
        assert block_size > 0, f"blocks of {block_size} tokens"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.root_digest = chain_digest(extra_key, ())
        self.num_read = [0] * num_blocks
        """Tokens of each block that a draft model has read, from its beginning (`engine/draft_model.py`)."""
        self._ref_counts = [0] * num_blocks
        self._blank: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._first_fresh = 0
        self._num_kept_min = num_kept_min
        self._kept_per_held = 1
        self._taken: OrderedDict[bytes, None] = OrderedDict()
        self._block_by_digest: dict[bytes, int] = {}
        self._digest_by_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._blank) + len(self._cached) + self._num_fresh

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def is_shared(self, block: int) -> bool:
        return self._ref_counts[block] > 1

    def can_free(self, count: int, holders: Sequence[Sequence[int]]) -> bool:
        """Whether `count` blocks would be free if `holders` gave back all of theirs."""
        missing = count - self.num_free
        for blocks in holders:
            if missing <= 0:
                return True
            missing -= list(map(self._ref_counts.__getitem__, blocks)).count(1)
        if missing <= 0:
            return True
        held = Counter(block for blocks in holders for block in blocks)
        return missing <= sum(self._ref_counts[block] == num > 1 for block, num in held.items())

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks of unspecified content, one reference each. The caller checked `num_free`."""
        assert count <= self.num_free, f"asked for {count} blocks, {self.num_free} free"
        num_blank = min(count, len(self._blank))
        blocks = self._blank[len(self._blank) - num_blank :][::-1]
        del self._blank[len(self._blank) - num_blank :]
        while len(blocks) < count:
            blocks += self._take_fresh_or_cached(count - len(blocks))
        for block in blocks:
            self._ref_counts[block] = 1
            self.num_read[block] = 0
        return blocks

    def num_known(self, digests: Iterable[bytes]) -> int:
        """The number of the first `digests` that can be found, up to the first that cannot."""
        count = 0
        for digest in digests:
            if digest not in self._block_by_digest:
                break
            count += 1
        return count

    def is_known(self, digest: bytes) -> bool:
        return digest in self._block_by_digest

    def acquire_prefix(self, digests: Iterable[bytes]) -> list[int]:
        """Takes a reference on the blocks of the longest known prefix of `digests`, in order."""
        blocks: list[int] = []
        for digest in digests:
            block = self._block_by_digest.get(digest)
            if block is None:
                self.note_miss(digest)
                break
            if self._ref_counts[block] == 0:
                del self._cached[block]
            self._ref_counts[block] += 1
            blocks.append(block)
        return blocks

    def publish(self, blocks: Sequence[int], digests: Sequence[bytes]) -> None:
        """Makes held, full blocks findable. The first block published under a digest stays the one found."""
        block_by_digest, digest_by_block = self._block_by_digest, self._digest_by_block
        for block, digest in zip(blocks, digests, strict=True):
            assert self._ref_counts[block] > 0, f"publishing block {block}, which has no holder"
            if digest not in block_by_digest and block not in digest_by_block:
                block_by_digest[digest] = block
                digest_by_block[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """Gives back one reference on each. A chain's tail becomes reusable before its head."""
        ref_counts, digest_by_block, cached = self._ref_counts, self._digest_by_block, self._cached
        for block in reversed(blocks):
            assert ref_counts[block] > 0, f"releasing block {block}, which has no holder"
            ref_counts[block] -= 1
            if ref_counts[block]:
                continue
            if block in digest_by_block:
                cached[block] = None
            else:
                self._blank.append(block)

    def forget(self, blocks: Iterable[int]) -> list[int]:
        """Makes held blocks unfindable, as what they hold is wrong; returns those only the caller holds."""
        alone = []
        for block in blocks:
            assert self._ref_counts[block] > 0, f"forgetting block {block}, which has no holder"
            digest = self._digest_by_block.pop(block, None)
            if digest is not None:
                del self._block_by_digest[digest]
            if self._ref_counts[block] == 1:
                alone.append(block)
        return alone

    def note_miss(self, digest: bytes) -> None:
        """Notes that a block was wanted and is gone. Had it been taken, more are kept from now on."""
        if digest in self._taken:
            self._taken.clear()  # double once per prefix, not once per block
            self._kept_per_held *= 2

    def discard(self, digests: Iterable[bytes]) -> list[int]:
        """Makes blocks unfindable that no sequence holds, as what they hold is wrong; returns them."""
        known = (self._block_by_digest[digest] for digest in digests if digest in self._block_by_digest)
        cached = [block for block in known if block in self._cached]
        for block in cached:
            del self._cached[block]
            del self._block_by_digest[self._digest_by_block.pop(block)]
            self._blank.append(block)
        return cached

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Asserts that every block is in one state and that references equal what `holders` list."""
        held = Counter(block for blocks in holders for block in blocks)
        for block, ref_count in enumerate(self._ref_counts):
            assert ref_count == held[block], f"block {block}: {ref_count} references, {held[block]} holders"
        free = [*self._blank, *self._cached, *range(self._first_fresh, self.num_blocks)]
        assert len(set(free)) == len(free), "a block is free twice"
        assert not set(free) & set(held), "a block is both free and held"
        assert len(free) + len(held) == self.num_blocks, "a block is neither free nor held"
        assert all(block in self._digest_by_block for block in self._cached), "cached without a digest"
        assert not any(block in self._digest_by_block for block in self._blank), "blank with a digest"
        inverse = {block: digest for digest, block in self._block_by_digest.items()}
        assert inverse == self._digest_by_block, "digest tables disagree"

    @property
    def _num_fresh(self) -> int:
        return self.num_blocks - self._first_fresh

    def _take_fresh_or_cached(self, count: int) -> list[int]:
        """Takes at least one block and at most `count`: as many as certainly come from the same place."""
        if self._num_fresh and len(self._cached) < self._num_kept():  # more are worth keeping with each taken
            first = self._first_fresh
            self._first_fresh += min(count, self._num_fresh)
            return list(range(first, self._first_fresh))
        return self._take_cached(1 if self._num_fresh else count)

    def _take_cached(self, count: int) -> list[int]:
        """Takes the blocks least recently used, and forgets what they hold."""
        blocks = [self._cached.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            digest = self._digest_by_block.pop(block)
            del self._block_by_digest[digest]
            if self._num_fresh:
                self._remember_taken(digest)
        if not self._num_fresh:  # more memory could not have kept them
            self._taken.clear()
        return blocks

    def _num_kept(self) -> int:
        """Cached blocks that are worth a fresh one."""
        num_held = self.num_blocks - self.num_free
        return self._kept_per_held * max(num_held, self._num_kept_min)

    def _remember_taken(self, digest: bytes) -> None:
        self._taken[digest] = None
        while len(self._taken) > self._num_fresh:  # more memory could not have kept them
            self._taken.popitem(last=False)
