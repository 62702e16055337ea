"""A service with state, as the client sees it over HTTP: files, uploads, jobs, results."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from nightshift.bulk.rows.templates import render

Answer = Callable[[str], str | None]  # a prompt's answer; None: the row fails
NDJSON = {"content-type": "application/x-ndjson"}


def upper(prompt: str) -> str | None:
    """Fails rows with "bad" in them."""
    return None if "bad" in prompt else prompt.upper()


@dataclass
class Pieces(httpx.SyncByteStream):
    """A body that may break off at its end."""

    pieces: list[bytes]
    breaks: bool

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.breaks:
            raise httpx.ReadError("reset")


@dataclass
class FakeService:
    """Its jobs have ended when they are looked at for the second time, unless `is_holding`."""

    answer: Answer = upper
    is_holding: bool = False
    state: str = "succeeded"  # which jobs end in
    rows_per_stream: int = 1000  # after which a stream breaks
    files: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)  # newest first
    requests: list[httpx.Request] = field(default_factory=list)
    before_submission: Callable[[], None] | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        for method, pattern, handle in ROUTES:
            match = re.fullmatch(pattern, request.url.path)
            if match and method == request.method:
                return handle(self, request, *match.groups())
        return httpx.Response(404, json={"error": {"message": f"no route {request.url.path}"}})

    @property
    def submitted(self) -> list[dict[str, Any]]:
        """The bodies of all submissions that were accepted, newest first."""
        return [job["body"] for job in self.jobs]

    def rows(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that a job reads."""
        return [json.loads(line) for line in self.files[job["body"]["input"]].splitlines()]

    def prompts(self, job: dict[str, Any]) -> list[str]:
        """The texts that the model reads of a job's rows."""
        return [render(job["body"]["template"], row)["messages"][-1]["content"] for row in self.rows(job)]

    def end(self, **fields: Any) -> None:
        """Ends the newest job otherwise than it would have."""
        self.jobs[0].update(fields)

    def _begin_upload(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"id": f"upload_{json.loads(request.content)['bytes']}"})

    def _part(self, request: httpx.Request, _: str) -> httpx.Response:
        self.parts[id := f"part_{len(self.parts)}"] = content_of(request)
        return httpx.Response(200, json={"id": id})

    def _complete(self, request: httpx.Request, upload_id: str) -> httpx.Response:
        content = b"".join(self.parts[id] for id in json.loads(request.content)["part_ids"])
        assert upload_id == f"upload_{len(content)}", "the parts are as long as was announced"
        self.files[id := f"file-{len(self.files)}"] = content
        return httpx.Response(200, json={"file": {"id": id}})

    def _submit(self, request: httpx.Request) -> httpx.Response:
        if self.before_submission is not None:
            before, self.before_submission = self.before_submission, None
            before()
        body = json.loads(request.content)
        if any((job["name"], job["date"]) == (body["name"], body["date"]) for job in self.jobs):
            return refusal(422, "idempotency_key_reused")
        self.add(body)
        return httpx.Response(202, json=self.jobs[0])

    def add(self, body: dict[str, Any]) -> None:
        named = ("name", "date", "metadata", "template", "output")
        job = {"id": f"job_{len(self.jobs)}", "status": "running", "looked_at": 0, "body": body}
        self.jobs.insert(0, job | {name: body.get(name) for name in named})

    def _list(self, request: httpx.Request) -> httpx.Response:
        jobs = [job for job in self.jobs if job["name"] == request.url.params["name"]]
        listed = [{name: value for name, value in job.items() if name != "template"} for job in jobs]
        return httpx.Response(200, json={"data": listed, "has_more": False})

    def _describe(self, _: httpx.Request, id: str) -> httpx.Response:
        job = self._job(id)
        job["looked_at"] += 1
        if job["status"] == "running" and job["looked_at"] > 1 and not self.is_holding:
            outcomes = [line["outcome"] for line in self._lines(job)]
            good = outcomes.count("succeeded")
            counts = {"total": len(outcomes), "succeeded": good, "failed": len(outcomes) - good}
            job |= {"status": self.state, "counts": counts}
        return httpx.Response(200, json=job)

    def _cancel(self, _: httpx.Request, id: str) -> httpx.Response:
        self._job(id).update(status="cancelled")
        return httpx.Response(200, json=self._job(id))

    def _results(self, request: httpx.Request, id: str) -> httpx.Response:
        after = request.url.params.get("after")
        first = 0 if after is None else int(after.removeprefix("row_")) + 1
        lines = [json.dumps(line).encode() + b"\n" for line in self._lines(self._job(id))[first:]]

        pieces = [b"".join(lines[: self.rows_per_stream])]
        if len(lines) > self.rows_per_stream:
            pieces.append(lines[self.rows_per_stream][:9])
        return httpx.Response(200, headers=NDJSON, stream=Pieces(pieces, breaks=len(pieces) > 1))

    def _lines(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Results in the order in which they came: the last row first."""
        if not job["body"]["input"].startswith("file-"):
            return []
        rows = list(reversed(self.rows(job)))
        return [self._line(job, place, row) for place, row in enumerate(rows)]

    def _line(self, job: dict[str, Any], place: int, row: dict[str, Any]) -> dict[str, Any]:
        prompt = render(job["body"]["template"], row)["messages"][-1]["content"]
        head = {"id": f"row_{place}", "custom_id": row[job["body"]["id_column"]], "error": None}
        text = self.answer(prompt)
        if text is None:
            error = {"code": "context_length_exceeded", "message": "It is too long."}
            return head | {"outcome": "errored", "response": {"status_code": 400, "body": {"error": error}}}
        choice = {"message": {"content": text}, "finish_reason": "length" if text.endswith("…") else "stop"}
        return head | {
            "outcome": "succeeded",
            "response": {"status_code": 200, "body": {"choices": [choice]}},
        }

    def _job(self, id: str) -> dict[str, Any]:
        return next(job for job in self.jobs if job["id"] == id)


ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/uploads", FakeService._begin_upload),
    ("POST", "/v1/uploads/([^/]+)/parts", FakeService._part),
    ("POST", "/v1/uploads/([^/]+)/complete", FakeService._complete),
    ("POST", "/v1/jobs", FakeService._submit),
    ("GET", "/v1/jobs", FakeService._list),
    ("GET", "/v1/jobs/([^/]+)", FakeService._describe),
    ("POST", "/v1/jobs/([^/]+)/cancel", FakeService._cancel),
    ("GET", "/v1/jobs/([^/]+)/results", FakeService._results),
]


def content_of(request: httpx.Request) -> bytes:
    """The file in a form: the longest part of it."""
    boundary = request.headers["content-type"].partition("boundary=")[2].encode()
    parts = request.content.split(b"--" + boundary)
    [body] = [part for part in parts if b"filename=" in part.partition(b"\r\n\r\n")[0]]
    return body.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")


def refusal(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", "code": code, "param": None}})
