"""Work for the service: jobs whose every answer is known beforehand.

Submitting goes on until the service has said yes, under one idempotency key, whatever happens to it
meanwhile: what was accepted once is one job, and the oracle counts.
"""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from nightshift.jobs import Face
from nightshift.jobs.ids import job_id_of_batch
from tests.faults.kit.service import Service
from tests.helpers.waiting import WAIT_MAX_S

RETRYABLE: Final = frozenset({408, 429, 502, 503, 504})
RETRY_S: Final = 0.1  # a service that is being restarted can only be asked again
ANSWER_TIMEOUT_S: Final = 10.0
ENDPOINT: Final = "/v1/chat/completions"


@dataclass(frozen=True)
class Row:
    """One request. `prompt` may hold magic words (`fake_engine.py`)."""

    custom_id: str
    prompt: str
    max_tokens: int | None = 16  # None: to the end of the context
    ends_as: str = "succeeded"  # the outcome it is to have
    sampling: Mapping[str, Any] = field(default_factory=dict)  # what else its body says

    def body(self, model: str) -> dict[str, Any]:
        message = {"role": "user", "content": self.prompt}
        return {"model": model, "messages": [message], "max_tokens": self.max_tokens, **self.sampling}

    def line(self, model: str) -> dict[str, Any]:
        """As a line of an input."""
        return {"custom_id": self.custom_id, "method": "POST", "url": ENDPOINT, "body": self.body(model)}


@dataclass(frozen=True)
class BulkJob:
    id: str
    face: Face
    rows: Sequence[Row]
    output: str  # a folder, of a native job
    name: str


@dataclass(frozen=True)
class OnlineJob:
    id: str
    row: Row


Job = BulkJob | OnlineJob


def some_rows(
    count: int,
    *,
    seed: int = 0,
    step_ms: int = 5,
    tokens: tuple[int, int] = (4, 24),
    sampling: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Rows of different lengths, the same for the same seed."""
    draw = random.Random(seed)
    return [
        Row(
            f"row-{number}",
            f"seed {seed} row {number} ms={step_ms}",
            draw.randint(*tokens),
            sampling=sampling or {},
        )
        for number in range(count)
    ]


PART_ROWS = 16  # outputs of several parts


def submit_bulk(
    service: Service, rows: Sequence[Row], *, face: Face = Face.NATIVE, **options: Any
) -> BulkJob:
    """Submits rows as a job of their own; `options` go into its body. Raises AssertionError when refused."""
    name = uuid.uuid4().hex[:12]
    data = "".join(json.dumps(row.line(service.model)) + "\n" for row in rows).encode()
    webhook = {"url": service.receiver.numeric_url}
    with _insistent(service, name) as post:
        if face is Face.NATIVE:
            places = {
                "input": service.put_file(f"in/{name}.jsonl", data),
                "output": service.location(f"out/{name}/"),
            }
            answer = post(
                "/v1/jobs",
                json={"endpoint": "chat", "webhook": webhook, "part_rows": PART_ROWS} | places | options,
            )
            return BulkJob(answer["id"], face, tuple(rows), f"out/{name}/", name)
        file = post("/v1/files", files={"file": (f"{name}.jsonl", data)}, data={"purpose": "batch"})
        wishes = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        answer = post("/v1/batches", json=wishes | {"nightshift": {"webhook": webhook} | options})
    job_id = job_id_of_batch(answer["id"])
    assert job_id is not None
    return BulkJob(job_id, face, tuple(rows), "", name)


def submit_online(service: Service, row: Row, **options: Any) -> OnlineJob:
    """Submits one request without waiting for it."""
    webhook = {"url": service.receiver.numeric_url}
    body = {"endpoint": "chat", "body": row.body(service.model), "webhook": webhook}
    with _insistent(service, uuid.uuid4().hex) as post:
        answer = post("/v1/jobs", json=body | options)
    return OnlineJob(answer["id"], row)


def submit_some(service: Service, seed: int, *, step_ms: int = 5, **options: Any) -> list[Job]:
    """A bulk job, to whose body `options` go, and a few online requests."""
    rows = some_rows(60, seed=seed, step_ms=step_ms)
    online = [submit_online(service, row) for row in some_rows(3, seed=seed)]
    return [submit_bulk(service, rows, **options), *online]


Post = Callable[..., dict[str, Any]]


@contextmanager
def _insistent(service: Service, key: str) -> Iterator[Post]:
    """A POST that is repeated under one key until it is answered with yes or no."""
    with service.http() as http:

        def post(path: str, **request: Any) -> dict[str, Any]:
            deadline_s = time.monotonic() + WAIT_MAX_S
            headers = {"idempotency-key": f"{key}-{path.rpartition('/')[2]}"}
            while time.monotonic() < deadline_s:
                try:
                    answer = http.post(path, headers=headers, timeout=ANSWER_TIMEOUT_S, **request)
                except httpx.TransportError:
                    time.sleep(RETRY_S)
                    continue
                if answer.status_code not in RETRYABLE:
                    assert answer.is_success, f"{path}: {answer.status_code} {answer.text[:500]}"
                    return dict(answer.json())
                time.sleep(RETRY_S)
            raise TimeoutError(f"{path} was not answered within {WAIT_MAX_S:.0f} s")

        yield post
