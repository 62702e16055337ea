"""Delete objects of the service's own that nothing refers to, and nothing ever will.

A process that dies between storing an object and recording it leaves an orphan. Objects are young, and left
alone, by the store's own clock; whether an older one is an orphan, the database says:

    segments/{tenant}/{job}/{shard}/t{term}-…    not listed, not to be carried over, its term past: only a
                                                 leased term lists anything, and no term is reused
    results/{tenant}/{job}/…                     there is no such job, or its results are deleted
    digests/{tenant}/{job}/…                     likewise
    assembly/{tenant}/{job}/…                    the job has ended
    files/{tenant}/{file}                        not on record, not of an unfinished batch, and too old for an
                                                 upload that may still be recorded; or expired, and no
                                                 unfinished job reads it
    uploads/{tenant}/{upload}/{part}             not on record, and too old to be recorded yet; or of
                                                 an upload that has expired
    half-written objects                         a day old, and of no part that may still be published; a
                                                 writer that comes back begins again
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from nightshift.jobs import ShardState
from nightshift.jobs.files import PART_UNRECORDED_S, UNRECORDED_S, output_file_id
from nightshift.lifecycle.uploads import expire
from nightshift.objectstore import ObjectInfo, ObjectStore
from nightshift.process import failpoints
from nightshift.store import Store
from nightshift.store.jobs.references import References, ShardReferences
from scheduler.runtime.duty import MayContinue, PassResult, check

CLOCK_KEY: Final = "retention/clock"  # an empty object, written to read the store's clock
COLLECTED: Final = "objects_collected"  # the counter

_UNDER_A_TERM: Final = re.compile(r"segments/[^/]+/(?P<job>[^/]+)/(?P<shard>[0-9]+)/t(?P<term>[0-9]+)-[^/]+")


@dataclass(frozen=True)
class RetentionConfig:
    interval_s: float = 300.0  # between two rounds through all objects
    orphan_age_s: float = 3600.0  # younger objects are left alone
    objects_per_pass_max: int = 1000  # a page of S3's
    expired_pages_max: int = 10  # … of expired files in a round
    uploads_per_pass_max: int = 100  # expired ones, each with its parts


@dataclass(frozen=True, kw_only=True)
class Collected(PassResult):
    collected: int = 0
    unfinished: int = 0  # half-written objects deleted


Judge = Callable[[References, Sequence[ObjectInfo]], set[str]]  # returns the keys still wanted


@dataclass(frozen=True)
class _Kind:
    """Objects under one prefix."""

    prefix: str
    age_s: float
    wanted: Judge


class Retention:
    name = "retention"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        config: RetentionConfig = RetentionConfig(),
        may_continue: MayContinue = lambda: True,
    ) -> None:
        self._store = store
        self._objects = objects
        self._config = config
        self.interval_s = config.interval_s
        self._may_continue = may_continue
        self._kinds = (
            _Kind("segments/", config.orphan_age_s, _wanted_under_a_term),
            _Kind("results/", config.orphan_age_s, _wanted_results),
            _Kind("digests/", config.orphan_age_s, _wanted_results),
            _Kind("assembly/", config.orphan_age_s, _wanted_notes),
            _Kind("files/", max(config.orphan_age_s, UNRECORDED_S), _wanted_files),
            _Kind("uploads/", max(config.orphan_age_s, PART_UNRECORDED_S), _wanted_parts),
        )
        self._kind = 0  # where the round is …
        self._last_key: str | None = None  # … and the last object it has seen
        self._began_at: datetime | None = None  # by the store's clock

    def run_once(self, now: datetime) -> Collected:
        """One page of the round. Raises StorageError: the next pass goes on from here."""
        kind = self._kinds[self._kind]
        limit = self._config.objects_per_pass_max
        page = list(islice(self._objects.list(kind.prefix, self._last_key), limit))
        old = self._older_than(page, kind.age_s) if page else []
        collected = self._collect(old, kind) if old else 0
        if len(page) == limit:
            self._last_key = page[-1].key
            return Collected(collected=collected, has_more=True)
        self._kind, self._last_key = (self._kind + 1) % len(self._kinds), None
        if self._kind:
            return Collected(collected=collected, has_more=True)
        self._began_at = None
        collected += self._delete_expired(now) + self._delete_parts(now)
        with self._store.snapshot() as tx:
            kept = tx.parts.open_uploads()  # recorded before their bytes were sent: the old ones are known
        age = timedelta(seconds=max(self._config.orphan_age_s, UNRECORDED_S))
        swept = self._objects.forget_unfinished(age, kept)
        return Collected(collected=collected, unfinished=swept)

    def _delete_expired(self, now: datetime) -> int:
        """Files that have expired, or were deleted while a job read them that has ended since."""
        collected = 0
        for _ in range(self._config.expired_pages_max):
            page = self._delete_expired_page(now)
            collected += page
            if page < self._config.objects_per_pass_max:
                break
        return collected

    def _delete_expired_page(self, now: datetime) -> int:
        with self._store.transaction() as tx:
            expired = tx.files.expired(now, self._config.objects_per_pass_max)
            for file in expired:
                tx.files.delete(file.tenant_id, file.id)
        if expired:
            failpoints.hit("scheduler.files_forgotten")
        for file in expired:  # after their records: what a crash leaves is an orphan
            check(self._may_continue)
            self._objects.delete(file.key)
        return len(expired)

    def _delete_parts(self, now: datetime) -> int:
        """The parts of uploads that have expired."""
        with self._store.transaction() as tx:
            parts = expire(tx, now, self._config.uploads_per_pass_max)
        for part in parts:
            check(self._may_continue)
            self._objects.delete(part.key)
        return len(parts)

    def _older_than(self, page: Sequence[ObjectInfo], age_s: float) -> list[ObjectInfo]:
        """Compared with the store's clock as the round began: one write a round, and none seems too old."""
        if self._began_at is None:
            self._began_at = self._objects.put(CLOCK_KEY, b"").modified_at
        latest = self._began_at - timedelta(seconds=age_s)
        return [info for info in page if info.modified_at <= latest]

    def _collect(self, old: Sequence[ObjectInfo], kind: _Kind) -> int:
        with self._store.snapshot() as tx:
            wanted = kind.wanted(tx.references, old)
        orphans = [info.key for info in old if info.key not in wanted]
        for key in orphans:
            check(self._may_continue)
            self._objects.delete(key)
        if orphans:
            with self._store.transaction() as tx:
                tx.counters.add(COLLECTED, len(orphans))
        return len(orphans)


def _wanted_under_a_term(references: References, old: Sequence[ObjectInfo]) -> set[str]:
    named = {info.key: name for info in old if (name := _UNDER_A_TERM.fullmatch(info.key))}
    places = {key: (name["job"], int(name["shard"])) for key, name in named.items()}
    shards = references.of_shards(set(places.values()), list(named))
    unknown = {info.key for info in old} - named.keys()  # their keys have another form: kept
    return unknown | {
        key for key, place in places.items() if _is_wanted(key, int(named[key]["term"]), shards.get(place))
    }


def _is_wanted(key: str, term: int, shard: ShardReferences | None) -> bool:
    """Whether a segment or a carry-over is known to its shard, or may become so. Pure."""
    if shard is None:
        return False
    if key in shard.listed or (key == shard.carry_over_key and not shard.state.is_terminal):
        return True
    return shard.state is ShardState.LEASED and term >= shard.term


def _wanted_results(references: References, old: Sequence[ObjectInfo]) -> set[str]:
    return _wanted_by_owner(old, references.jobs_with_results)


def _wanted_notes(references: References, old: Sequence[ObjectInfo]) -> set[str]:
    return _wanted_by_owner(old, references.unfinished_jobs)


def _wanted_files(references: References, old: Sequence[ObjectInfo]) -> set[str]:
    # Asked before the files: one that ends in between has put its files on record.
    batches = references.unfinished_batches()
    to_come = {output_file_id(job_id, kind) for job_id in batches for kind in ("output", "error")}
    return _wanted_by_owner(old, lambda file_ids: to_come | references.files(file_ids))


def _wanted_parts(references: References, old: Sequence[ObjectInfo]) -> set[str]:
    known = references.upload_parts({info.key.rpartition("/")[2] for info in old})
    return {info.key for info in old if info.key.rpartition("/")[2] in known}


def _wanted_by_owner(old: Sequence[ObjectInfo], known: Callable[[set[str]], set[str]]) -> set[str]:
    """Keys are `kind/tenant/owner…`. Those of a known owner, and those of another form."""
    owners = {info.key: parts[2] for info in old if len(parts := info.key.split("/")) > 2}
    wanted = known(set(owners.values()))
    return {info.key for info in old if owners.get(info.key) in wanted or info.key not in owners}
