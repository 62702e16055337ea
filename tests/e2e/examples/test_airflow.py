"""Airflow as it is, against the whole service: the OpenAI provider's operator, and the examples' DAG."""

import json
import os
import signal
from pathlib import Path

import openai
import pytest

from nightshift.cli.demo import DEMO_MODEL_ID
from nightshift.cli.processes.supervisor import Process
from nightshift.client import RemoteJob
from tests.e2e.examples.conftest import DAGS, OWN_DAGS, Airflow
from tests.e2e.service import JOB_TIMEOUT_S, Service, batch_lines, output_lines, parquet_rows
from tests.faults.kit.processes import is_running
from tests.helpers.waiting import wait_for

DAG_ID, DAY, LOCAL_DAY = "nightly_summaries", "2026-11-27T23:30:00+00:00", "2026-11-28"


def wait_until_ended(airflow: Airflow, process: Process) -> int:
    """Waits for a run of Airflow to end; returns its exit code."""
    wait_for("the run ends", lambda: not is_running(process.pid), JOB_TIMEOUT_S, said=airflow.said)
    return process.wait()


def test_the_openai_providers_batch_operator_runs_unchanged_waiting_and_deferred(
    service: Service, client: openai.OpenAI, airflow: Airflow, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(batch_lines([1, 2, 3]))
    mark = tmp_path.name

    process = airflow.start(service, OWN_DAGS, "openai_batch", DAY, rows=str(rows), mark=mark)

    assert wait_until_ended(airflow, process) == 0, airflow.said()
    batches = [batch for batch in client.batches.list() if (batch.metadata or {}).get("mark") == mark]
    assert sorted((batch.metadata or {})["task"] for batch in batches) == ["deferred", "waiting"]
    assert [batch.status for batch in batches] == ["completed", "completed"]
    for batch in batches:
        lines = output_lines(client, batch.id)
        assert [line["custom_id"] for line in lines] == ["number-1", "number-2", "number-3"]


@pytest.fixture
def rows(workplace: Path, tmp_path: Path, numbers: list[int]) -> Path:
    path = workplace / f"{tmp_path.name}.jsonl"
    path.write_text("".join(json.dumps({"text": str(number)}) + "\n" for number in numbers))
    return path


@pytest.mark.exhaustive
def test_the_dag_of_the_examples_finds_its_job_again_after_airflow_was_killed(
    service: Service, airflow: Airflow, workplace: Path, rows: Path, numbers: list[int]
) -> None:
    output = workplace / rows.stem

    def start() -> Process:
        places = {"input": rows.as_uri(), "output": output.as_uri() + "/"}
        return airflow.start(service, DAGS, DAG_ID, DAY, **places, model=DEMO_MODEL_ID)

    def jobs() -> list[RemoteJob]:
        with service.client() as client:
            return list(client.list_jobs(name=DAG_ID))

    killed = start()
    [job] = wait_for("the job is submitted", jobs, JOB_TIMEOUT_S, said=airflow.said)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()

    assert wait_until_ended(airflow, start()) == 0, airflow.said()
    assert f"{job.id} was submitted as --name {DAG_ID} --date {LOCAL_DAY}" in airflow.said()
    [same] = jobs()
    assert (same.id, same.state, same.counts.succeeded) == (job.id, "succeeded", len(numbers))
    assert len(parquet_rows(output / LOCAL_DAY)) == len(numbers)
