"""/v1/files: upload, list, content, deletion."""

import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, Final

import openai

from conformance.expectations import expect, expect_count, expect_equal, expect_id, expect_refusal, shown
from conformance.registry import Area
from conformance.session import LISTED_MAX, Session

AREA = Area("files", "GET", "/files")
CONTENT: Final = b'{"custom_id": "row-0"}\n{"custom_id": "r\xc3\xb6w-1"}\n'
STATUSES: Final = ("uploaded", "processed", "error")


@AREA.add("bytes can be uploaded")
def bytes_uploaded(session: Session) -> None:
    _expect_file(session.keep_file(session.client.files.create(file=CONTENT, purpose="batch")))


@AREA.add("a path can be uploaded and keeps its name")
def path_uploaded(session: Session) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "of-a-path.jsonl"
        path.write_bytes(CONTENT)
        file = session.keep_file(session.client.files.create(file=path, purpose="batch"))
    _expect_file(file)
    expect_equal(file.filename, "of-a-path.jsonl", "a file with the filename")


@AREA.add("a tuple of name and bytes can be uploaded")
def tuple_uploaded(session: Session) -> None:
    file = session.upload(CONTENT, "of a tuple.jsonl")
    _expect_file(file)
    expect_equal(file.filename, "of a tuple.jsonl", "a file with the filename")


@AREA.add("expires_after is understood as the client sends it")
def expires_after(session: Session) -> None:
    sent = {"anchor": "created_at", "seconds": 7200}
    file = session.keep_file(
        session.client.files.create(file=("x.jsonl", CONTENT), purpose="batch", expires_after=sent)
    )
    expires_at = getattr(file, "expires_at", None)
    expect(
        expires_at == file.created_at + 7200,
        f"answers expires_at {shown(expires_at)} for a file created at {shown(file.created_at)}",
        "answers created_at + the 7200 seconds that were asked for",
    )


@AREA.add("expires_after below an hour is refused")
def expires_too_soon(session: Session) -> None:
    sent = {"anchor": "created_at", "seconds": 10}
    expect_refusal(
        lambda: session.keep_file(
            session.client.files.create(file=("x.jsonl", CONTENT), purpose="batch", expires_after=sent)
        ),
        "a file that expires after 10 s",
    )


@AREA.add("a file is described by its id")
def described(session: Session) -> None:
    file = session.upload(CONTENT)
    answer = session.client.files.retrieve(file.id)
    _expect_file(answer)
    expect_equal(answer.id, file.id, "a file that is asked for by its id with the id")


@AREA.add("list goes on over several pages and shows every file once")
def pages(session: Session) -> None:
    ours = [session.upload(CONTENT).id for _ in range(3)]
    expect(len(set(ours)) == 3, f"gives three files the ids {shown(ours)}", "gives each its own")
    expect_each_once(session.client.files.list(limit=2, order="desc", purpose="batch"), ours, "files")


@AREA.add("content comes back as it was, whole, in pieces and as a stream")
def content(session: Session) -> None:
    id = session.upload(CONTENT).id
    files = session.client.files
    _expect_content(files.content(id).read(), "content().read()")
    _expect_content(files.content(id).text.encode(), "content().text")
    _expect_content(b"".join(files.content(id).iter_bytes(7)), "content().iter_bytes()")
    with files.with_streaming_response.content(id) as answer:
        _expect_content(b"".join(answer.iter_bytes()), "with_streaming_response.content()")


@AREA.add("a deleted file is a 404 afterwards")
def deleted(session: Session) -> None:
    file = session.client.files.create(file=("x.jsonl", CONTENT), purpose="batch")
    id = expect_id(file.id, "an upload with the id")
    expect_equal(session.client.files.delete(id).deleted, True, "a deletion with deleted")
    for call in (session.client.files.retrieve, session.client.files.content, session.client.files.delete):
        _expect_gone(call, id)


@AREA.add("a file without a purpose is refused")
def purpose_missing(session: Session) -> None:
    expect_refusal(
        lambda: session.client.post(
            "/files",
            cast_to=object,
            body={},
            files={"file": ("x.jsonl", CONTENT)},
            options={"headers": {"content-type": "multipart/form-data"}},
        ),
        "an upload without a purpose",
    )


def expect_each_once(pages: Any, wanted: list[str], what: str) -> None:
    """Expects each of the first LISTED_MAX objects once, newest first, and the wanted ones among them."""
    ids = [getattr(listed, "id", None) for listed in islice(pages, LISTED_MAX)]
    twice = [id for id in ids if ids.count(id) > 1] if len(set(ids)) < len(ids) else []
    expect(not twice, f"lists {shown(twice[:1])} more than once over its pages", "lists each object once")
    missing = [id for id in wanted if id not in ids]
    expect(
        not missing,
        f"lists {len(ids)} {what} over its pages and leaves out {len(missing)} of {len(wanted)} new ones",
        "lists them all, newest first",
    )


def _expect_gone(call: Any, id: str) -> None:
    expect_refusal(lambda: call(id), f"files.{call.__name__}() of a deleted file", openai.NotFoundError)


def _expect_file(file: Any) -> None:
    expect_id(getattr(file, "id", None), "an upload with the id")
    expect_equal(file.object, "file", "a file with the object")
    expect_equal(file.bytes, len(CONTENT), "a file with the bytes")
    expect_equal(file.purpose, "batch", "a file with the purpose")
    expect_count(file.created_at, "a file with created_at")
    expect(
        getattr(file, "status", None) in STATUSES,
        f"answers a file with the status {shown(getattr(file, 'status', None))}",
        f"answers one of {', '.join(STATUSES)}",
    )


def _expect_content(got: bytes, how: str) -> None:
    expect(got == CONTENT, f"answers {how} with {shown(got)}", "answers the bytes as they were uploaded")
