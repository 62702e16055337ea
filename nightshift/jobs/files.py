"""Uploaded files and output files. Their bytes are in the object store."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from nightshift.jobs.ids import SUFFIX_LENGTH, derived_id

UNRECORDED_S: Final = 86_400.0  # an unrecorded object is collected this long after its upload began
RECORDED_WITHIN_S: Final = UNRECORDED_S / 2  # a later record may name an object that is being collected


class FilePurpose(StrEnum):
    BATCH = "batch"  # an upload to run
    BATCH_OUTPUT = "batch_output"  # results, and error lines
    USER_DATA = "user_data"  # stored as it is, like those below
    ASSISTANTS = "assistants"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    EVALS = "evals"


@dataclass(frozen=True, kw_only=True)
class File:
    """A stored file. `filename` is the client's name for it and never used as a path."""

    id: str
    tenant_id: str
    purpose: FilePurpose
    filename: str
    size_bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None  # afterwards the file is not found

    @property
    def key(self) -> str:
        return file_key(self.tenant_id, self.id)


def file_key(tenant_id: str, file_id: str) -> str:
    return f"files/{tenant_id}/{file_id}"


def output_file_id(job_id: str, kind: Literal["output", "error"]) -> str:
    """The id of a batch's output or error file, the same at every attempt to write it."""
    return derived_id("file-", f"{job_id}/{kind}")


_PARTIAL_OUTPUT: Final = "file-partial"  # and 24 letters and digits: no other id is so long


def partial_output_file_id(job_id: str) -> str:
    """The id under which a batch's results can be read as they come."""
    return _PARTIAL_OUTPUT + job_id.removeprefix("job_")


def job_id_of_partial_output(file_id: str) -> str | None:
    """The job of such an id. None: it is another file's."""
    suffix = file_id.removeprefix(_PARTIAL_OUTPUT)
    return f"job_{suffix}" if file_id.startswith(_PARTIAL_OUTPUT) and len(suffix) == SUFFIX_LENGTH else None


def retry_input_id(job_id: str) -> str:
    """The id of the file with the rows that this retry runs, the same at every attempt to write it."""
    return derived_id("file-", f"{job_id}/input")
