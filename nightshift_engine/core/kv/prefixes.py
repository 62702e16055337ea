"""Prefixes being computed right now, and the sequences that wait for one instead of computing it too.

A waiting sequence is released when its block has been computed, or when the sequence computing it stopped for
any reason: none waits for a block that is not being computed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..sequence import Sequence


class PrefixesInFlight:
    """Which running sequence will publish which block digest, and which sequences wait for it."""

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
        """Let a sequence wait if the first of `digests` is under way; False if it is not.

        It waits for the last block of the run that is. A less urgent class is not waited for: it may be
        kept from advancing.
        """
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
        """Forget a sequence that waits; False if it does not."""
        digest = self._digest_waited_for.pop(sequence, None)
        if digest is None:
            return False
        self._waiting_for[digest].remove(sequence)
        return True

    def check_integrity(self, running: Seq[Sequence]) -> None:
        """Assert that each parked sequence waits for a block that a running one computes."""
        assert set(self._owner_by_digest.values()) <= set(running), "the owner of a block does not run"
        assert set(self._digest_waited_for.values()) <= set(self._owner_by_digest), "waits for nothing"

    def _release(self, digest: bytes) -> list[Sequence]:
        released = self._waiting_for.pop(digest, [])
        for sequence in released:
            del self._digest_waited_for[sequence]
        return released
