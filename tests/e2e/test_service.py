"""The whole service as processes, through the clients people use."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from examples import demo
from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from tests.e2e.service import (
    JOB_TIMEOUT_S,
    START_TIMEOUT_S,
    answer_of,
    command,
    ended_batch,
    forked,
    job_of,
    nightshift,
    output_lines,
    submit_batch,
    wait_until_ended,
)
from tests.helpers.waiting import wait_for

ACCURACY_MIN = 0.99  # what the demo model's card states
CHECKOUT = Path(__file__).resolve().parents[2]


def accuracy(
    lines: list[dict[str, object]], numbers: Sequence[int], answer_to: Callable[[int], str]
) -> float:
    """The share of right answers, every row once."""
    answers = {line["custom_id"]: answer_of(line) for line in lines}
    assert len(answers) == len(lines) == len(numbers), "a row is missing, or there twice"
    right = sum(answers[f"number-{number}"] == answer_to(number) for number in numbers)
    return right / len(numbers)


def test_a_batch_through_the_official_client_answers_every_row(service, client, numbers, answer_to):
    batch_id = submit_batch(client, numbers[:60])

    batch = ended_batch(service, batch_id)

    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
        60,
        60,
        0,
    )
    assert batch.error_file_id is None
    assert batch.usage.output_tokens > 60
    assert accuracy(output_lines(client, batch_id), numbers[:60], answer_to) >= ACCURACY_MIN


@pytest.mark.exhaustive
def test_the_demo_is_answered_without_a_mistake(client, answer_to, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where its output goes
    monkeypatch.setattr(demo, "number_in_words", answer_to)
    numbers = demo.held_out_numbers(500 + demo.CHATS, seed=48213)
    rows, chats = numbers[:500], numbers[500:]

    assert demo.exercise(client, rows, chats) == []

    lines = (tmp_path / demo.RESULTS / "output.jsonl").read_text().splitlines()
    assert accuracy([json.loads(line) for line in lines], rows, answer_to) == 1.0


def test_the_program_that_the_readme_shows_answers_a_chat_and_every_row(service, answer_to):
    environment = os.environ | service.environment() | {"NIGHTSHIFT_API_KEY": service.api_key}
    program = [sys.executable, str(CHECKOUT / "examples" / "first_batch.py")]

    ended = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=True
    )

    chat, counts, *lines = ended.stdout.split("\n", 101)
    assert chat == answer_to(48213)
    assert counts.startswith("completed BatchRequestCounts(completed=100, failed=0, total=100)")
    answers = {int(row["custom_id"]): answer_of(row) for row in map(json.loads, filter(str.strip, lines))}
    assert answers == {number: answer_to(number) for number in range(1000, 1100)}


def test_only_its_user_can_open_what_the_service_keeps_and_others_what_a_job_writes(
    service, client, workplace, numbers
):
    wait_until_ended(service, submit_batch(client, numbers[:3]))
    (workplace / "open.csv").write_text(f"figure\n{numbers[0]}\n")
    ended = nightshift(
        service,
        *("run", "open.csv", "--output", "open-out", "--endpoint", "chat", "--model", DEMO_MODEL_ID),
        *("--input-column", "figure", "--wait"),
        cwd=workplace,
    )
    assert ended.returncode == 0, ended.stderr

    def open_under(folder: Path, bits: int) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.lstat().st_mode & bits}

    kept = {path.name for path in service.data_dir.iterdir()}
    assert {"nightshift.db", "nightshift.db-wal", "objects", "valkey", "logs", "api_key"} <= kept
    in_files = {name for name in open_under(service.data_dir, 0o077) if name.split("/")[0] == "files"}
    assert open_under(service.data_dir, 0o077) == in_files, "files/ is for jobs"
    written = workplace / "open-out"
    assert open_under(written, 0o044) == open_under(written, 0o400), "as the umask of this test says"


def test_a_table_goes_in_and_part_files_come_out(service, workplace, numbers, answer_to):
    rows = workplace / "numbers.csv"
    with rows.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("id", "figure"))
        table.writerows((f"row-{number}", number) for number in numbers[100:140])
    out = workplace / "out"

    ended = nightshift(
        service,
        *("run", "numbers.csv", "--output", "out", "--endpoint", "chat", "--model", DEMO_MODEL_ID),
        *(
            "--input-column",
            "figure",
            "--id-column",
            "id",
            "--wait",
            "--name",
            "table",
            "--date",
            "2026-11-20",
        ),
        cwd=workplace,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "40 rows succeeded, 0 failed" in ended.stdout
    assert (out / "_SUCCESS").exists()
    manifest = json.loads((out / "_manifest.json").read_text())
    assert manifest["counts"] == {"total": 40, "succeeded": 40, "failed": 0}
    lines = [
        json.loads(line) for part in sorted(out.glob("part-*")) for line in part.read_text().splitlines()
    ]
    expected = {f"row-{number}": answer_to(number) for number in numbers[100:140]}
    assert [line["custom_id"] for line in lines] == list(expected)
    assert sum(answer_of(line) == expected[line["custom_id"]] for line in lines) >= 40 * ACCURACY_MIN - 1

    again = nightshift(
        service,
        *("run", "numbers.csv", "--output", "out", "--endpoint", "chat", "--model", DEMO_MODEL_ID),
        *("--input-column", "figure", "--id-column", "id", "--name", "table", "--date", "2026-11-20"),
        cwd=workplace,
    )
    assert again.stdout.strip() == ended.stdout.split()[0], "the same run twice is one job"


def test_the_next_night_only_rows_that_changed_are_run(service, workplace, numbers, answer_to):
    tonight = numbers[200:300]

    def night(date: str, figures: list[int]) -> tuple[str, dict[str, object]]:
        """Runs one night; returns the output of the command, and the manifest."""
        rows = [{"id": f"row-{place}", "figure": str(number)} for place, number in enumerate(figures)]
        (workplace / "nightly.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        template = {
            "model": DEMO_MODEL_ID,
            "messages": [{"role": "user", "content": "{{figure}}"}],
            "temperature": 0,
        }
        (workplace / "nightly.json").write_text(json.dumps(template))
        ended = nightshift(
            service,
            *("run", "nightly.jsonl", "--output", "nightly-out", "--endpoint", "chat"),
            *("--template", "nightly.json", "--id-column", "id", "--wait"),
            *("--name", "nightly", "--date", date, "--reuse", "latest"),
            cwd=workplace,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout, json.loads((workplace / "nightly-out" / "_manifest.json").read_text())

    said, first = night("2026-11-20", tonight)
    assert "reused" not in said
    assert first["reused"] == {"rows": 0, "job_id": None}

    changed = {10: numbers[300], 50: numbers[301], 99: numbers[302]}
    figures = [changed.get(place, number) for place, number in enumerate(tonight)]
    said, second = night("2026-11-21", figures)

    assert "100 rows succeeded, 0 failed, 97 reused" in said
    assert second["reused"] == {"rows": 97, "job_id": first["job_id"]}
    parts = (workplace / "nightly-out").glob("part-*")
    lines = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len(lines) == 100
    right = sum(
        answer_of(line) == answer_to(figures[int(line["custom_id"].removeprefix("row-"))]) for line in lines
    )
    assert right >= 100 * ACCURACY_MIN - 1

    estimated = nightshift(
        service,
        *("estimate", "nightly.jsonl", "--endpoint", "chat", "--template", "nightly.json", "--json"),
        *("--name", "nightly", "--date", "2026-11-22", "--reuse", "2026-11-20"),
        cwd=workplace,
    )
    known = json.loads(estimated.stdout)
    assert (estimated.returncode, known["status"], known["problems"]) == (0, "succeeded", [])
    rows, figures = known["input"], known["figures"]
    assert (rows["rows"], rows["rows_reused"], figures["rows_to_run"]) == (100, 97, 3)
    assert known["sample"]["shares_answers"]
    assert figures["completion_tokens"]["total"] > 3


def test_the_commands_see_what_runs(service, client, numbers):
    batch_id = submit_batch(client, numbers[200:205])
    wait_until_ended(service, batch_id)
    job_id = job_of(batch_id)

    listed = json.loads(nightshift(service, "jobs", "list", "--json").stdout)
    events = nightshift(service, "jobs", "events", job_id).stdout
    results = nightshift(service, "jobs", "results", job_id).stdout

    assert job_id in [job["id"] for job in listed]
    assert events.splitlines()[-1].split()[2] == "job.succeeded"
    assert {json.loads(line)["custom_id"] for line in results.splitlines()} == {
        f"number-{number}" for number in numbers[200:205]
    }
    assert nightshift(service, "doctor").returncode == 0


def test_top_shows_the_worker_with_its_figures(service):
    def shown_with_figures():
        """A worker tells its figures with its heartbeats."""
        shown = json.loads(nightshift(service, "top", "--once", "--json").stdout)
        told = [worker["figures"] for worker in shown["workers"] if worker["figures"]]
        return shown if any(DEMO_MODEL_ID in figures["models"] for figures in told) else None

    shown = wait_for("the worker tells its figures", shown_with_figures)
    assert shown["worker_states"]["ready"] == 1
    assert shown["service_queue"] is None, "the first key is no administrator's"
    screen = nightshift(service, "top", "--once", COLUMNS="160").stdout
    assert DEMO_MODEL_ID in screen


@pytest.mark.exhaustive  # tests/security has what is said of broken models
def test_a_model_that_cannot_be_loaded_ends_the_start_with_the_reason(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(demo_model_path(), broken)
    with (broken / "model.safetensors").open("r+b") as weights:
        weights.truncate(1000)

    ended = subprocess.run(
        command("up", "--model", str(broken), "--data-dir", str(tmp_path / "data"), "--port", "0"),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )

    assert ended.returncode == 1
    assert f"The model '{broken}' cannot be served" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("nightshift: worker-1")
    assert ended.stdout == ""


def test_a_webhook_reaches_the_receiver_of_the_examples_with_a_signature_it_accepts(service, client):
    secret = nightshift(service, "webhooks", "secret").stdout.strip()
    receiver = subprocess.Popen(
        [sys.executable, str(CHECKOUT / "examples" / "webhook_receiver.py"), "--port", "0"],
        env=os.environ | {"NIGHTSHIFT_WEBHOOK_SECRET": secret},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with receiver, service.http() as http:
        assert receiver.stdout is not None
        assert receiver.stderr is not None
        url = receiver.stderr.readline().split()[-1]
        body = {"model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "48213"}]}
        job = http.post("jobs", json={"endpoint": "chat", "body": body, "webhook": {"url": url}}).json()
        event = json.loads(receiver.stdout.readline())
        receiver.terminate()

    assert event["type"] == "job.succeeded"
    assert event["data"]["id"] == job["id"]


def test_one_page_shows_the_metrics_of_all_processes_and_names_one_that_is_gone(tmp_path):
    with forked(tmp_path / "data", "--workers", "2") as service, service.http() as http:
        url = f"{service.base_url.removesuffix('/v1')}/metrics"
        workers = [f'nightshift_process_up{{process="worker-{n}"}} 1.0' for n in (1, 2)]

        def metrics_of_both_workers() -> str | None:
            text = http.get(url).text
            return text if all(line in text for line in workers) else None

        # It is ready with its first worker.
        text = wait_for("the second worker", metrics_of_both_workers, START_TIMEOUT_S)
        for name in ("api", "scheduler", "worker-1", "worker-2"):
            assert f'nightshift_process_up{{process="{name}"}} 1.0' in text
            assert f'process_resident_memory_bytes{{process="{name}"}}' in text
        assert 'nightshift_worker_leases{worker="worker-2",kind="bulk"} 0.0' in text
        assert "nightshift_scheduler_leading 1.0" in text
        assert "nightshift_database_up 1.0" in text

        scheduler = next(pid for pid, line in service.processes().items() if "-m scheduler" in line)
        os.kill(scheduler, signal.SIGSTOP)  # it hangs, and is not started again meanwhile
        try:
            text = http.get(url).text
        finally:
            os.kill(scheduler, signal.SIGCONT)
        assert 'nightshift_process_up{process="scheduler"} 0.0' in text
        assert 'nightshift_process_up{process="worker-1"} 1.0' in text
