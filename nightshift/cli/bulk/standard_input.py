"""`nightshift run -`: standard input as an uploaded file."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final

from nightshift.cli.bulk.requests_of_rows import STANDARD_INPUT, InvalidOption
from nightshift.cli.terminal import fail
from nightshift.errors import NightshiftError
from nightshift.jobs import JsonObject
from nightshift.jobs.files import PART_BYTES_MAX

if TYPE_CHECKING:
    from nightshift.client import Client, RemoteJob

HELD_BYTES_MAX: Final = PART_BYTES_MAX  # in memory; more is kept in a temporary file
COPIED_BYTES: Final = 1024 * 1024  # at a time
_MAGIC: Final = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
DEFAULT_FORMAT: Final = "jsonl"


@contextmanager
def uploaded(client: "Client", body: JsonObject, *, is_kept: bool) -> Iterator[JsonObject]:
    """The job's body with the file in the place of standard input, if that is its input. The file is deleted
    if no job is made of it, or at the end unless it `is_kept`.

    Raises InvalidOption where there are no bytes, ApiError and ServerUnreachable.
    """
    if body["input"] != STANDARD_INPUT:
        yield body
        return
    file_id = _upload(client, body.get("input_format"))
    try:
        yield body | {"input": file_id}
    except BaseException:
        with suppress(NightshiftError):  # it expires
            client.delete_file(file_id)
        raise
    if not is_kept:
        client.delete_file(file_id)


def earlier_job(client: "Client", body: JsonObject) -> "RemoteJob | None":
    """The job of the same name and date, whose input is not to be uploaded again."""
    if body["input"] != STANDARD_INPUT or body.get("name") is None:
        return None
    named = client.list_jobs(name=str(body["name"]))
    return next((job for job in named if job.data["date"] == body["date"]), None)


def _upload(client: "Client", told: str | None) -> str:
    with tempfile.SpooledTemporaryFile(HELD_BYTES_MAX) as file:
        size_bytes = _copied(sys.stdin.buffer, file)
        if not size_bytes:
            raise InvalidOption("INPUT", "standard input has no bytes")
        file.seek(0)
        head = file.read(8)
        file.seek(0)
        format = told or next(
            (name for magic, name in _MAGIC.items() if head.startswith(magic)), DEFAULT_FORMAT
        )
        return client.upload_file(file, size_bytes, f"stdin.{format}")


def _copied(source: IO[bytes], file: IO[bytes]) -> int:
    """Copies all of it, whose size is not known before its end. Returns the size."""
    size_bytes = 0
    try:
        while piece := source.read(COPIED_BYTES):
            size_bytes += file.write(piece)
    except OSError as error:
        fail(
            f"standard input cannot be kept until it is uploaded ({error.strerror}): a temporary file in "
            f"{tempfile.gettempdir()} has what is beyond {HELD_BYTES_MAX} bytes; TMPDIR names another place"
        )
    return size_bytes
