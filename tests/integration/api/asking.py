"""Bodies of requests that would be accepted, and steps that their jobs take."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import encode_segment
from nightshift.jobs import Counts, JobState
from nightshift.jobs.leases import Lease
from nightshift.lifecycle import transitions
from nightshift.objectstore import ObjectStore
from nightshift.store import Store, Transaction
from tests.helpers.fakes import a_segment, a_shard_head
from tests.integration.api.fake_worker import CHAT_MODEL

CHAT = "/v1/chat/completions"


def bearer(key: str) -> dict[str, str]:
    """The header of a request with this key."""
    return {"authorization": f"Bearer {key}"}


def chat(text: str = "one two", **fields: object) -> dict[str, object]:
    return {"model": CHAT_MODEL, "messages": [{"role": "user", "content": text}]} | fields


def online(text: str = "one two", **fields: object) -> dict[str, object]:
    return {"endpoint": CHAT, "body": chat(text)} | fields


def bulk_under(allowed: Path, **fields: object) -> dict[str, object]:
    places = {"input": (allowed / "in.jsonl").as_uri(), "output": (allowed / "out").as_uri() + "/"}
    return {"endpoint": CHAT} | places | fields


def batch_over(file_id: str, **fields: object) -> dict[str, object]:
    return {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"} | fields


def end_job(store: Store, job_id: str, state: JobState = JobState.FAILED, **fields: object) -> None:
    """As the scheduler does; `fields` are those of `transitions.finish`."""
    with store.transaction() as tx:
        ends = {"counts": Counts(0)} | fields
        assert transitions.finish(tx, tx.jobs.fetch(job_id), state, tx.now(), **ends)  # type: ignore[arg-type]


def store_segment(
    tx: Transaction, objects: ObjectStore, lease: Lease, results: Sequence[RowResult], seq: int = 0
) -> None:
    """As a worker does at a checkpoint."""
    encoded = encode_segment(a_shard_head(), results, is_measured=True)
    failed = sum(not result.succeeded for result in results)
    segment = a_segment(lease, seq, rows=len(results), failed=failed)
    stored = objects.put(segment.key, encoded.data)
    segment = replace(
        segment,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256 or "",
        output_bytes=encoded.output_bytes,
    )
    assert transitions.commit_segment(tx, lease, segment, tx.now(), rows_total=None)
