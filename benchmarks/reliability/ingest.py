"""How many input rows per second the scheduler turns into shards.

A native input is cut unread: its rows are checked when they run. Of an OpenAI file every line is read and
checked before any row may run.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.reliability.databases import store_on
from benchmarks.reliability.figures import Figure
from benchmarks.reliability.services import Database
from nightshift.jobs import Face
from nightshift.jobs.files import file_key
from nightshift.jobs.ids import new_id
from nightshift.objectstore import Locations, open_store
from nightshift.objectstore.sources import Sources
from nightshift.rows.validation import FileLimits
from nightshift.settings import SchedulerSettings
from nightshift.store import Store
from nightshift.tenants.keys import DEFAULT_TENANT
from nightshift.testing import MODEL, InMemoryQueue, a_spec, submit
from scheduler.__main__ import SHARD_ROWS_MAX
from scheduler.duties.planning import Planning, PlanningConfig
from scheduler.input.retrying import RetryInputs
from scheduler.input.sharding import ShardLimits
from scheduler.input.surveying import SurveyConfig
from scheduler.runtime.leadership import Elector
from tests.faults.chaos.workload import ENDPOINT

GOALS = {"sqlite": 30_000.0, "postgresql": 100_000.0}
TIMEOUT_S = 300.0


def measure(database: Database, rows: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as name, store_on(database) as store:
        folder = Path(name)
        objects = open_store((folder / "objects").as_uri())
        locations = Locations((), (str(folder),))
        with closing(objects), closing(locations):
            elector = Elector(store, "benchmark", clock=lambda: 0.0)
            elector.attempt()
            sources, config = Sources(objects, locations), planning_config(rows)
            planning = Planning(
                store,
                InMemoryQueue(),
                sources,
                locations,
                config,
                lambda: elector.lead,
                RetryInputs(store, objects, sources, config.survey.line_bytes_max),
            )
            data = b"".join(_line(number) for number in range(rows))
            (folder / "rows.jsonl").write_bytes(data)
            file_id = new_id("file", "-")
            objects.put(file_key(DEFAULT_TENANT, file_id), data)
            native = _plan(store, planning, (folder / "rows.jsonl").as_uri(), Face.NATIVE)
            openai = _plan(store, planning, file_id, Face.OPENAI)
    megabytes = len(data) / 1e6
    yield Figure(f"native input of {rows} rows, cut unread", rows / native, "rows/s", GOALS[database], "more")
    yield Figure(
        f"OpenAI file of {rows} rows, each checked", rows / openai, "rows/s", GOALS[database], "more"
    )
    yield Figure("  the same in bytes", megabytes / openai, "MB/s")


def _plan(store: Store, planning: Planning, source: str, face: Face) -> float:
    """Seconds from the job's submission until its shards may be claimed."""
    spec = a_spec(input=source, output=None if face is Face.OPENAI else "file:///nowhere/")
    job = submit(store, face=face, model=None, spec=spec)
    started_s = time.monotonic()
    planning.run_once(store.now())
    assert planning.wait_until_idle(TIMEOUT_S)
    took_s = time.monotonic() - started_s
    with store.snapshot() as tx:
        planned = tx.jobs.fetch(job.id)
    assert planned.planned_at is not None, planned.errors
    return took_s


def planning_config(rows_max: int) -> PlanningConfig:
    """As the scheduler has it by default."""
    settings = SchedulerSettings()
    limits = ShardLimits(
        settings.shard_bytes, settings.shards_per_job_max, page_shards=settings.shards_per_page_max
    )
    return PlanningConfig(
        file=FileLimits(rows_max, rows_max, settings.shard_bytes, SHARD_ROWS_MAX),
        survey=SurveyConfig(limits=limits, line_bytes_max=settings.line_bytes_max),
    )


def _line(number: int) -> bytes:
    message = {"role": "user", "content": f"Summarise document {number} in one sentence, please."}
    body = {"model": MODEL, "messages": [message], "max_tokens": 64}
    line = {"custom_id": f"doc-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(line).encode() + b"\n"
