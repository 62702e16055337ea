"""Native jobs with ended shards, cut into parts, and claims to those."""

from collections.abc import Iterable

from nightshift.jobs import Job
from nightshift.jobs.part import CutLimits, OutputPart, PartClaim, PartFile, PartUpload
from nightshift.lifecycle import cutting
from nightshift.store import Store
from tests.helpers.fakes import TTL_S, claimed, commit_rows, completed, planned

ROWS = 4  # of each shard; 100 bytes each
SMALL = CutLimits(part_bytes=800, part_rows=1000)  # two shards


def with_ended(store: Store, shards: int, ended: Iterable[int], **overrides: object) -> Job:
    """A planned job, of whose shards these have ended. There must be no other job with queued shards."""
    job = planned(store, shards=shards, **overrides)  # type: ignore[arg-type]
    end(store, ended)
    return job


def end(store: Store, numbers: Iterable[int]) -> None:
    """Completes shards with these numbers, and gives the others back."""
    wanted, others = set(numbers), []
    while wanted:
        claim = claimed(store)
        if claim.shard.shard_no in wanted:
            commit_rows(store, claim.lease, rows=ROWS)
            assert completed(store, claim.lease, rows_total=ROWS)
            wanted.remove(claim.shard.shard_no)
        else:
            others.append(claim.lease)
    with store.transaction() as tx:
        for lease in others:
            assert tx.leases.hand_back(lease)


def cut(
    store: Store, job: Job, limits: CutLimits = SMALL, *, is_complete: bool = True, after_no: int = -1
) -> cutting.CutPass:
    return store.run(
        lambda tx: cutting.cut(tx, job, limits, tx.now(), is_complete=is_complete, after_no=after_no)
    )


def parts(store: Store, job: Job) -> list[OutputPart]:
    with store.snapshot() as tx:
        return list(tx.parts.of_job(job.id, limit=1000))


def ranges(store: Store, job: Job) -> list[tuple[int, int]]:
    return [(part.first_shard, part.last_shard) for part in parts(store, job)]


def claim_part(store: Store, owner: str = "sched_1", ttl_s: float = TTL_S) -> PartClaim | None:
    with store.transaction() as tx:
        return tx.parts.claim(owner, tx.now(), ttl_s)


def claimed_part(store: Store, owner: str = "sched_1", ttl_s: float = TTL_S) -> PartClaim:
    claim = claim_part(store, owner, ttl_s)
    assert claim is not None, "there was no part to claim"
    return claim


def an_upload(number: int = 0, **overrides: object) -> PartUpload:
    name = f"part-{number:05d}.jsonl"
    return PartUpload(**{"name": name, "key": f"out/{name}", "upload_id": f"u{number}", **overrides})  # type: ignore[arg-type]


def a_part_file(number: int = 0, *, rows: int = 8, failed: int = 1) -> PartFile:
    return PartFile(
        name=f"part-{number:05d}.jsonl",
        rows=rows,
        succeeded=rows - failed,
        failed=failed,
        size_bytes=5_000_000_000,
        sha256="0" * 64,
        etag="abc-2",
        prompt_tokens=80,
        completion_tokens=40,
    )
