"""Running sequences, which of them lose their blocks first, and the prefixes that they are computing."""

from bisect import insort
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from .kv_blocks import BlockPool
from .request import PRIORITY_RANKS
from .sequence import Sequence, urgency

OVERDUE_TOKENS = 16
"""New tokens that a sequence admitted as overdue computes before more urgent classes may preempt it."""


class RunningSet:
    """Running sequences, by class and then by arrival."""

    def __init__(self) -> None:
        self.by_rank: list[list[Sequence]] = [[] for _ in PRIORITY_RANKS]

    def __len__(self) -> int:
        return sum(map(len, self.by_rank))

    def __bool__(self) -> bool:
        return any(self.by_rank)

    def __iter__(self) -> Iterator[Sequence]:
        for members in self.by_rank:
            yield from members

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.by_rank[sequence.rank]

    def add(self, sequence: Sequence, *, is_overdue: bool) -> None:
        """`is_overdue`: admitted before more urgent classes, and protected from them for `OVERDUE_TOKENS`."""
        insort(self.by_rank[sequence.rank], sequence, key=urgency)
        if is_overdue:
            sequence.protected_until_tokens = sequence.num_tokens + OVERDUE_TOKENS

    def remove(self, sequence: Sequence) -> None:
        self.by_rank[sequence.rank].remove(sequence)

    def after(self, rank: int) -> Iterator[Sequence]:
        """Sequences of less urgent classes."""
        for members in self.by_rank[rank + 1 :]:
            yield from members

    def unprotected(self, sequence: Sequence, from_rank: int = 0) -> list[Sequence]:
        """Sequences that `sequence` may preempt, most urgent first: not those protected from its class."""
        return [
            other
            for members in self.by_rank[from_rank:]
            for other in members
            if other.rank == sequence.rank or other.num_tokens >= other.protected_until_tokens
        ]


def least_urgent(candidates: Iterable[Sequence], pool: BlockPool, flow: str | None = None) -> Sequence | None:
    """The sequence that releases blocks: of the least urgent class the youngest, so that those before it end.

    `flow`: whose sequence needs them. In its class it takes its own before those of others, however young.
    None if no candidate has a block that would become free.
    """
    candidates = sorted(candidates, key=urgency, reverse=True)
    if flow is not None:
        candidates.sort(key=lambda candidate: (-candidate.rank, candidate.flow != flow))
    for candidate in candidates:
        if not all(map(pool.is_shared, reversed(candidate.blocks))):
            return candidate
    return None


class PrefixesInFlight:
    """The block digests that running sequences will publish, and the sequences that wait for them."""

    def __init__(self) -> None:
        self._owner_by_digest: dict[bytes, Sequence] = {}
        self._digests_by_owner: dict[Sequence, list[bytes]] = {}
        self._waiting_for: dict[bytes, list[Sequence]] = {}
        self._digest_waited_for: dict[Sequence, bytes] = {}

    @property
    def parked(self) -> list[Sequence]:
        return list(self._digest_waited_for)

    def start(self, owner: Sequence, digests: Seq[bytes]) -> None:
        """`owner` begins to compute the blocks of these digests."""
        mine = [digest for digest in digests if digest not in self._owner_by_digest]
        self._owner_by_digest.update(dict.fromkeys(mine, owner))
        self._digests_by_owner[owner] = mine

    def publish(self, digests: Seq[bytes]) -> list[Sequence]:
        """Blocks have been computed; returns those that waited for one of them."""
        released: list[Sequence] = []
        for digest in digests:
            self._owner_by_digest.pop(digest, None)
            if self._waiting_for:
                released += self._release(digest)
        return released

    def stop(self, owner: Sequence) -> list[Sequence]:
        """`owner` computes no more; returns those that waited for it."""
        released: list[Sequence] = []
        for digest in self._digests_by_owner.pop(owner, ()):
            if self._owner_by_digest.get(digest) is owner:
                del self._owner_by_digest[digest]
                released += self._release(digest)
        return released

    def park(self, sequence: Sequence, digests: Seq[bytes]) -> bool:
        """Lets a sequence wait for the last block of a run under way; False if none as urgent is."""
        awaited = None
        for digest in digests:
            owner = self._owner_by_digest.get(digest)
            if owner is None or owner.rank > sequence.rank:
                break
            awaited = digest
        if awaited is None:
            return False
        self._waiting_for.setdefault(awaited, []).append(sequence)
        self._digest_waited_for[sequence] = awaited
        return True

    def discard(self, sequence: Sequence) -> bool:
        """Forgets a sequence that waits; False if it does not."""
        digest = self._digest_waited_for.pop(sequence, None)
        if digest is None:
            return False
        self._waiting_for[digest].remove(sequence)
        return True

    def check_integrity(self, running: Seq[Sequence]) -> None:
        """Asserts that each parked sequence waits for a block that a running one computes."""
        assert set(self._owner_by_digest.values()) <= set(running), "the owner of a block does not run"
        assert set(self._digest_waited_for.values()) <= set(self._owner_by_digest), "waits for nothing"

    def _release(self, digest: bytes) -> list[Sequence]:
        released = self._waiting_for.pop(digest, [])
        for sequence in released:
            del self._digest_waited_for[sequence]
        return released
