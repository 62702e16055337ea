"""Files: what a client uploads and downloads. Pure; the bytes lie in the object store, under an id."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from nightshift.jobs.ids import derived_id

UNRECORDED_S: Final = (
    86_400.0  # an object that is on no record is left alone this long from when it was begun
)
RECORDED_WITHIN_S: Final = UNRECORDED_S / 2  # one recorded later than this may have been collected


class FilePurpose(StrEnum):
    BATCH = "batch"  # an upload to run
    BATCH_OUTPUT = "batch_output"  # results, and error lines
    USER_DATA = "user_data"  # stored as it is; so are the ones below
    ASSISTANTS = "assistants"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    EVALS = "evals"


@dataclass(frozen=True, kw_only=True)
class File:
    """A stored file. `filename` is what the client called it: data, never a path."""

    id: str
    tenant_id: str
    purpose: FilePurpose
    filename: str
    size_bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None  # past it, the file is not found

    @property
    def key(self) -> str:
        """Where the bytes lie in the object store."""
        return file_key(self.tenant_id, self.id)


def file_key(tenant_id: str, file_id: str) -> str:
    return f"files/{tenant_id}/{file_id}"


def output_file_id(job_id: str, kind: Literal["output", "error"]) -> str:
    """The id of a batch's output or error file: the same at every attempt to write it."""
    return derived_id("file-", f"{job_id}/{kind}")
