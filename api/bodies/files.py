"""The bodies of /v1/uploads, asked and answered."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from api.bodies.jobs import OutputExpiry
from nightshift.endpoints.requests import Count, at_most, invalid_request
from nightshift.jobs import JsonObject
from nightshift.jobs.files import PARTS_MAX, FilePurpose

NAME_CHARS_MAX: Final = 4096

Purpose = Literal["batch", "user_data", "assistants", "fine-tune", "vision", "evals"]


class UploadCreate(BaseModel):
    """POST /v1/uploads."""

    model_config = ConfigDict(extra="ignore")

    bytes: Count
    filename: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
    mime_type: Annotated[str, Field(min_length=1, max_length=255)]
    purpose: Purpose
    expires_after: OutputExpiry | None = None

    @property
    def file_purpose(self) -> FilePurpose:
        return FilePurpose(self.purpose)


class UploadComplete(BaseModel):
    """POST /v1/uploads/{upload_id}/complete."""

    model_config = ConfigDict(extra="ignore")

    part_ids: Annotated[
        list[Annotated[str, Field(max_length=64)]], FailFast(), Field(min_length=1), at_most(PARTS_MAX)
    ]
    md5: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{32}$")] | None = None


class FileObject(BaseModel):
    """A File, as the answers have it."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"]
    status_details: str | None


class UploadObject(BaseModel):
    """An Upload, as the answers have it."""

    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None


class PartObject(BaseModel):
    """A part of an Upload, as the answers have it."""

    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


def parse_create(body: JsonObject) -> UploadCreate:
    """Raises InvalidRequest naming the first field that is wrong."""
    try:
        return UploadCreate.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error


def parse_complete(body: JsonObject) -> UploadComplete:
    """Raises InvalidRequest naming the first field that is wrong."""
    try:
        return UploadComplete.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error
