"""/v1/uploads: a file in parts."""

from typing import Any, Final

import openai

from conformance.expectations import expect, expect_equal, expect_id, expect_refusal, shown
from conformance.registry import Area
from conformance.session import Session

AREA = Area("uploads", "POST", "/uploads")
PARTS: Final = (b'{"custom_id": "row-0"}\n', b'{"custom_id": "row-1"}\n')
CONTENT: Final = b"".join(PARTS)
FILENAME: Final = "parts.jsonl"
MIME_TYPE: Final = "application/jsonl"


@AREA.add("parts become one file, in the order that is named at the end")
def completed(session: Session) -> None:
    id = _begun(session)
    second, first = (_part(session, id, part) for part in reversed(PARTS))
    _expect_file(session, session.client.uploads.complete(id, part_ids=[first, second]))


@AREA.add("the client's upload_file_chunked makes a file")
def chunked(session: Session) -> None:
    upload = session.client.uploads.upload_file_chunked(
        file=CONTENT,
        filename=FILENAME,
        bytes=len(CONTENT),
        mime_type=MIME_TYPE,
        purpose="batch",
        part_size=len(PARTS[0]),
    )
    _expect_file(session, upload)


@AREA.add("fewer bytes than were announced are refused")
def too_short(session: Session) -> None:
    id = _begun(session)
    part = _part(session, id, PARTS[0])
    expect_refusal(
        lambda: session.keep_file(session.client.uploads.complete(id, part_ids=[part]).file),
        "an upload of fewer bytes than were announced",
    )


@AREA.add("an unknown part is refused")
def part_unknown(session: Session) -> None:
    id = _begun(session)
    expect_refusal(
        lambda: session.client.uploads.complete(id, part_ids=["part_no_such_part"]),
        "an unknown part",
        openai.APIStatusError,
    )


@AREA.add("an upload can be cancelled, and takes no parts afterwards")
def cancelled(session: Session) -> None:
    id = _begun(session)
    upload = session.client.uploads.cancel(id)
    expect_equal(upload.status, "cancelled", "a cancelled upload with the status")
    expect_refusal(
        lambda: _part(session, id, PARTS[0]), "a part of a cancelled upload", openai.APIStatusError
    )


@AREA.add("an unknown upload is a 404")
def unknown(session: Session) -> None:
    expect_refusal(
        lambda: session.client.uploads.cancel("upload_no_such_upload"),
        "uploads.cancel() of an unknown upload",
        openai.NotFoundError,
    )


def _begun(session: Session) -> str:
    upload: Any = session.client.uploads.create(
        bytes=len(CONTENT), filename=FILENAME, mime_type=MIME_TYPE, purpose="batch"
    )
    expect_equal(upload.object, "upload", "an upload with the object")
    expect_equal(upload.status, "pending", "a new upload with the status")
    expect_equal(upload.bytes, len(CONTENT), "a new upload with the bytes")
    id = expect_id(upload.id, "an upload with the id")
    session.clean_up.add(id, lambda client: _cancel_unless_ended(client, id))
    return id


def _cancel_unless_ended(client: Any, id: str) -> None:
    try:
        client.uploads.cancel(id)
    except openai.BadRequestError:  # OpenAI's answer for one that is completed
        return


def _part(session: Session, upload_id: str, data: bytes) -> str:
    part = session.client.uploads.parts.create(upload_id, data=data)
    expect_equal(part.object, "upload.part", "a part with the object")
    return expect_id(part.id, "a part with the id")


def _expect_file(session: Session, upload: Any) -> None:
    expect_equal(upload.status, "completed", "a completed upload with the status")
    file = session.keep_file(upload.file)
    expect_equal(file.object, "file", "an upload's file with the object")
    expect_equal(file.filename, FILENAME, "an upload's file with the filename")
    content = session.client.files.content(file.id).read()
    expect(content == CONTENT, f"makes the file {shown(content)}", "joins the parts in the order named")
