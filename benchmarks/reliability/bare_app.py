"""A service without a database of its own: FastAPI hands each request to Celery."""

from __future__ import annotations

import os
from typing import Any

import celery
from fastapi import FastAPI
from pydantic import BaseModel

tasks = celery.Celery("bare", broker=os.environ["BARE_BROKER_URL"])
tasks.conf.update(task_ignore_result=True, task_serializer="json", accept_content=["json"])
app = FastAPI()


class Job(BaseModel):
    endpoint: str
    body: dict[str, Any]


def _run(job: dict[str, Any]) -> None:
    """Not run: nothing consumes the queue."""


run = tasks.task(_run, name="run")


@app.post("/v1/jobs", status_code=202)
def submit(job: Job) -> dict[str, str]:
    """Runs in FastAPI's thread pool, as `delay()` waits for Redis."""
    return {"id": run.delay(job.model_dump()).id}
