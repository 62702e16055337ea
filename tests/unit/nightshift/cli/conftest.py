"""A place of its own for each command that is tested, and a server that is a function."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift.cli.main import main
from nightshift.client import Client
from nightshift.store import Store
from tests.helpers.databases import migrated_sqlite


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the machine's own settings is seen; the user stands in an empty directory."""
    for name in [name for name in os.environ if name.startswith(("NIGHTSHIFT_", "HF_", "AWS_"))]:
        monkeypatch.delenv(name)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    directory = tmp_path / "data"
    monkeypatch.setenv("NIGHTSHIFT_DATA_DIR", str(directory))
    return directory


@pytest.fixture
def store(data_dir: Path) -> Iterator[Store]:
    """The installation's database, set up and without rows."""
    database = migrated_sqlite(data_dir / "nightshift.db")
    yield Store(database)
    database.close()


@pytest.fixture
def nightshift(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Runs a command as the shell would, but in this process, whose umask it may set."""
    monkeypatch.setenv("NIGHTSHIFT_OUTPUT_UMASK", "022")
    umask = os.umask(0o022)

    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    yield run
    os.umask(umask)


@dataclass
class FakeServer:
    """/v1/jobs with one job in it, whose life has already been lived: every submit makes it."""

    status: str = "succeeded"
    counts: dict[str, int | None] = field(default_factory=lambda: {"total": 3, "succeeded": 3, "failed": 0})
    refusal: httpx.Response | None = None
    is_repeat: bool = False  # of a submission
    resumes_at: int | None = None
    instead: Callable[[httpx.Request], httpx.Response | None] = lambda request: None  # of what it would say
    submitted: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "row_1_0", "custom_id": "a"}, {"id": "row_1_1", "custom_id": "b"}]
    )

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if (answer := self.instead(request)) is not None:
            return answer
        match request.method, request.url.path:
            case "POST", "/v1/jobs":
                return self.refusal or self._submit(json.loads(request.content))
            case "GET", "/v1/jobs":
                return httpx.Response(200, json={"data": [self.job], "has_more": False, "last_id": "job_1"})
            case "GET", "/v1/jobs/job_1":
                return httpx.Response(200, json=self.job)
            case "PATCH", "/v1/jobs/job_1":
                self.submitted.append(json.loads(request.content))
                return httpx.Response(200, json=self.job | self.submitted[-1])
            case "POST", "/v1/jobs/job_1/pause" | "/v1/jobs/job_1/resume":
                return httpx.Response(200, json=self.job)
            case "POST", "/v1/jobs/job_1/retry":
                self.submitted.append(json.loads(request.content))
                return httpx.Response(202, json={"id": "job_2", "status": "queued", "retry_of": "job_1"})
            case "POST", "/v1/jobs/job_1/cancel":
                self.status = "cancelled"
                return httpx.Response(200, json=self.job)
            case "DELETE", "/v1/jobs/job_1":
                return httpx.Response(200, json={"id": "job_1", "object": "job", "deleted": True})
            case "GET", "/v1/jobs/job_1/events":
                return httpx.Response(200, text=_events("job.running", f"job.{self.status}"))
            case "GET", "/v1/jobs/job_1/results":
                return httpx.Response(200, text="".join(f"{json.dumps(row)}\n" for row in self.rows))
            case "GET", "/v1/webhooks/secret":
                return httpx.Response(200, json={"secret": "whsec_c2VjcmV0"})
        error = {"message": "No such Job object: job_2", "param": "id", "code": "not_found"}
        return httpx.Response(404, json={"error": error})

    @property
    def job(self) -> dict[str, Any]:
        return {
            "id": "job_1",
            "status": self.status,
            "counts": self.counts,
            "output": "s3://out/",
            "priority": "standard",
            "endpoint": "/v1/embeddings",
            "model": "minilm",
            "name": "docs",
            "date": "2026-11-20",
            "created_at": 1_700_000_000,
            "errors": self.errors,
            "resumes_at": self.resumes_at,
        }

    def _submit(self, body: dict[str, Any]) -> httpx.Response:
        self.submitted.append(body)
        answer = {"id": "job_1", "status": "queued", "queue_position": 1}
        headers = {"Idempotent-Replayed": "true"} if self.is_repeat else {}
        return httpx.Response(202, json=answer, headers=headers)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """The server that commands talk to, a function instead of a program somewhere."""
    fake = FakeServer()

    def connect() -> Client:
        return Client("http://server", "ns_live_key", transport=httpx.MockTransport(fake), sleep=_no_sleep)

    for module in ("bulk.run", "bulk.estimate", "jobs", "schedules.commands", "webhooks"):
        monkeypatch.setattr(f"nightshift.cli.{module}.open_client", connect)
    return fake


def _events(*types: str) -> str:
    def line(number: int, type: str) -> str:
        data = {"id": "job_1", "type": type, "created_at": 1_700_000_000, "status": type[4:]}
        return f"id: {number}-0\nevent: {type}\ndata: {json.dumps(data)}\n\n"

    return "".join(line(number, type) for number, type in enumerate(types, start=1))


def _no_sleep(seconds: float) -> None:
    """Waiting is not what is tested."""


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
