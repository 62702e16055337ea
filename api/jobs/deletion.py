"""Deletes an ended job or batch, and says so in OpenAI's shape."""

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel

from nightshift.errors import Conflict
from nightshift.jobs import Job
from nightshift.lifecycle.controls import delete_job
from nightshift.store import Transaction


class DeletedJob(BaseModel):
    id: str
    object: Literal["job"] = "job"
    deleted: Literal[True] = True


class DeletedBatch(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    deleted: Literal[True] = True


def delete_ended(
    tx: Transaction, find: Callable[[], Job], status_of: Callable[[Job], str] = lambda job: job.state
) -> None:
    """`find`: the job, or raises NotFound. Raises Conflict for one that has not ended."""
    if delete_job(tx, find(), tx.now()):
        return
    job = find()  # deleted by a request at the same time: not found
    raise Conflict(
        f"Cannot delete a job with status '{status_of(job)}': cancel it, and delete it when it has ended.",
        code="job_not_ended",
    )
