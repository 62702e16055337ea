"""Checkpoints of one shard: what is written when, and what a later worker finds.

    rows done ──► buffer ──(64 rows or 2 s)──► object t3-000007.jsonl ──► listed in the database, under a term
                                               exists for nobody yet      exists

A worker that dies between the two leaves an object nobody will ever look at. Rows that are under way when the
worker must leave are saved as the tokens they have so far (the carry-over); that costs the next worker one
prefill instead of the whole row.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence

from nightshift import failpoints, lifecycle
from nightshift.jobs import BulkClaim, Segment, Usage, carry_over_key, segment_key
from nightshift.objectstore import ObjectStore
from nightshift.rows.outputs import RowResult, encode_segment, read_segment
from nightshift.store import Store
from workers.carry_over import CarryOver

log = logging.getLogger(__name__)

CARRY_OVER_BYTES_MAX = 256 * 1024 * 1024


class LeaseLost(Exception):
    """The shard belongs to somebody else now. Nothing more may be written for it."""


class Checkpoints:
    """Writes the segments of one lease of one shard."""

    def __init__(self, claim: BulkClaim, store: Store, objects: ObjectStore) -> None:
        self._claim = claim
        self._store = store
        self._objects = objects
        self._seq = 0

    def rows_done(self) -> set[int]:
        """The rows that earlier leases have finished: those in listed segments, and no others."""
        with self._store.snapshot() as tx:
            segments = tx.shards.segments(self._claim.shard.id)
        done: set[int] = set()
        for segment in segments:
            done.update(result.row for result in read_segment(self._objects, segment))
        return done

    def write(self, results: Sequence[RowResult], rows_total: int | None) -> None:
        """Store finished rows and list them.

        Raises LeaseLost when the database refuses; StorageError or DatabaseUnavailable when they cannot be
        reached. After any of them the rows do not count as done.
        """
        lease, shard = self._claim.lease, self._claim.shard
        data = encode_segment(results)
        key = segment_key(lease, shard.shard_no, self._seq)
        self._objects.put(key, data)
        failpoints.hit("worker.segment_stored")
        segment = Segment(
            key=key,
            term=lease.term,
            seq=self._seq,
            succeeded=sum(result.succeeded for result in results),
            failed=sum(not result.succeeded for result in results),
            usage=sum((result.usage for result in results), Usage()),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        with self._store.transaction() as tx:
            if not lifecycle.commit_segment(tx, lease, segment, tx.now(), rows_total=rows_total):
                raise LeaseLost
        failpoints.hit("worker.segment_listed")
        self._seq += 1

    def save_carry_over(self, unfinished: Mapping[int, CarryOver]) -> str | None:
        """Store the tokens of rows under way. Returns the object's key; None when there is nothing to
        save.
        """
        lines = [
            json.dumps(carry_over.to_json(row))
            for row, carry_over in unfinished.items()
            if not carry_over.is_empty
        ]
        if not lines:
            return None
        key = carry_over_key(self._claim.lease, self._claim.shard.shard_no, seq=0)  # one a lease
        self._objects.put(key, ("\n".join(lines) + "\n").encode())
        failpoints.hit("worker.carry_over_stored")
        return key

    def carry_over(self) -> dict[int, CarryOver]:
        """What the worker before left unfinished, by row."""
        key = self._claim.shard.carry_over_key
        if key is None:
            return {}
        lines = self._objects.read(key, size_bytes_max=CARRY_OVER_BYTES_MAX).splitlines()
        return {entry["row"]: CarryOver.from_json(entry) for entry in map(json.loads, lines)}
