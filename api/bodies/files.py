"""The bodies of /v1/files and /v1/uploads."""

from typing import Annotated, Final, Literal

from pydantic import FailFast, Field

from api.bodies import EpochTime, OpenAiBody, Record
from api.bodies.jobs import OutputExpiry
from nightshift.endpoints.requests import Count, at_most
from nightshift.jobs import JsonObject
from nightshift.jobs.files import PARTS_MAX, File, FilePurpose

NAME_CHARS_MAX: Final = 4096

Purpose = Literal["batch", "user_data", "assistants", "fine-tune", "vision", "evals"]


class UploadCreate(OpenAiBody):
    """POST /v1/uploads."""

    bytes: Count
    filename: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
    mime_type: Annotated[str, Field(min_length=1, max_length=255)]
    purpose: Purpose
    expires_after: OutputExpiry | None = None

    @property
    def file_purpose(self) -> FilePurpose:
        return FilePurpose(self.purpose)


class UploadComplete(OpenAiBody):
    """POST /v1/uploads/{upload_id}/complete."""

    part_ids: Annotated[
        list[Annotated[str, Field(max_length=64)]], FailFast(), Field(min_length=1), at_most(PARTS_MAX)
    ]
    md5: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{32}$")] | None = None


class FileObject(Record):
    """A File, as the answers have it."""

    id: str
    object: Literal["file"]
    bytes: int = Field(validation_alias="size_bytes")
    created_at: EpochTime
    expires_at: EpochTime | None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"]
    status_details: str | None


class UploadObject(Record):
    """An Upload, as the answers have it."""

    id: str
    object: Literal["upload"]
    bytes: int = Field(validation_alias="size_bytes")
    created_at: EpochTime
    expires_at: EpochTime
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None


class PartObject(Record):
    """A part of an Upload, as the answers have it."""

    id: str
    object: Literal["upload.part"]
    created_at: EpochTime
    upload_id: str


def file_json(file: File) -> JsonObject:
    return FileObject.shown(file, object="file", status="processed", status_details=None)
