import json
from typing import Any

import httpx
import pytest

from nightshift.cli.jobs import _event_text


def test_jobs_are_listed_as_a_table_and_as_json(nightshift, server):
    headings, line = nightshift("jobs", "list").out.splitlines()
    names = "JOB STATUS NAME DATE PRIORITY ENDPOINT MODEL DONE FAILED ROWS CREATED"
    assert headings.split() == names.split()
    about = ["job_1", "succeeded", "docs", "2026-11-20", "standard", "/v1/embeddings", "minilm"]
    assert line.split()[:7] == about
    assert line.endswith("2023-11-14 22:13:20Z")
    assert nightshift("jobs", "list", "--json").json == [server.job]


def test_only_jobs_of_these_states_and_this_time_are_listed(nightshift, server):
    bodies = []
    server.instead = lambda request: bodies.append(request.url.params)
    options = ("--status", "failed", "--status", "expired", "--name", "n", "--created-after", "2026-11-23")

    assert nightshift("jobs", "list", *options).code == 0
    assert bodies[0].get_list("status") == ["failed", "expired"]
    assert bodies[0]["name"] == "n"
    assert bodies[0]["created_after"] == "1795392000"


def test_a_job_is_shown_in_lines_without_what_is_empty(nightshift, server):
    out = nightshift("jobs", "show", "job_1").out
    assert "status:              succeeded\n" in out
    assert "counts:              3 rows, 3 succeeded, 0 failed\n" in out
    assert "created_at:          2023-11-14 22:13:20Z\n" in out
    assert "errors" not in out
    assert "links" not in out
    for id in ("job_1", "batch_1"):
        assert nightshift("jobs", "show", id, "--json").json == server.job


def problem(code: str, message: str, is_permanent: bool) -> dict[str, Any]:
    return {"code": code, "message": message, "is_permanent": is_permanent}


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("keep_body", False, "false"),
        (
            *("output_problem", problem("storage_unavailable", "the bucket is away.", False)),
            "the output cannot be written at present: the bucket is away; tried again",
        ),
        (
            *("output_problem", problem("storage_unavailable", "the bucket is away.", True)),
            "the output cannot be written: the bucket is away; the job stops",
        ),
        ("problem", problem("no_worker", "None\x1b[2J.", False), "None\ufffd[2J; tried again"),
        ("problem", problem("no_worker", "None\x1b[2J.", True), "None\ufffd[2J; the job fails with it"),
    ],
)
def test_a_field_of_a_job_is_a_line_that_acts_on_no_terminal(nightshift, server, field, value, shown):
    server.instead = lambda request: httpx.Response(200, json=server.job | {field: value})
    assert f"{field + ':':21}{shown}\n" in nightshift("jobs", "show", "job_1").out


def test_a_job_that_is_not_there_is_one_line_and_exit_code_1(nightshift, server):
    ended = nightshift("jobs", "show", "job_2")
    said = "nightshift: No such Job object: job_2; `nightshift jobs list` shows those there are\n"
    assert (ended.code, ended.out, ended.err) == (1, "", said)


def test_cancelling_says_what_became_of_the_job(nightshift, server):
    server.status = "running"
    ended = nightshift("jobs", "cancel", "job_1")
    assert (ended.code, ended.err) == (0, "job_1 has ended: cancelled\n")


def test_a_job_is_given_another_priority_and_metadata(nightshift, server):
    ended = nightshift("jobs", "update", "job_1", "--priority", "background", "--metadata", "a=b=c")
    assert (ended.code, ended.err) == (0, "job_1 has priority background\n")
    assert server.submitted == [{"priority": "background", "metadata": {"a": "b=c"}}]


@pytest.mark.parametrize(("command", "said"), [("pause", "is paused"), ("resume", "goes on")])
def test_a_job_is_paused_and_resumed(nightshift, server, command, said):
    ended = nightshift("jobs", command, "job_1")
    assert (ended.code, ended.err) == (0, f"job_1 {said}\n")
    assert nightshift("jobs", command, "job_1", "--json").json == server.job


def test_a_job_that_is_resumed_outside_its_window_is_said_to_wait(nightshift, server):
    server.resumes_at = 1_700_000_000
    assert nightshift("jobs", "resume", "job_1").err == "job_1 goes on at 2023-11-14 22:13:20Z\n"


def test_a_retry_prints_the_new_job(nightshift, server):
    ended = nightshift("jobs", "retry", "job_1", "--output", "s3://b/again/", "--priority", "background")
    assert (ended.code, ended.out) == (0, "job_2\n")
    assert server.submitted == [{"output": "s3://b/again/", "priority": "background"}]
    assert nightshift("jobs", "retry", "job_1", "--json").json["retry_of"] == "job_1"


@pytest.mark.parametrize("options", [(), ("--metadata", "a")])
def test_an_update_of_nothing_or_of_no_pair_is_a_mistake(nightshift, server, options):
    assert nightshift("jobs", "update", "job_1", *options).code == 2
    assert server.submitted == []


def test_an_ended_job_is_deleted(nightshift, server):
    ended = nightshift("jobs", "delete", "batch_1")
    assert (ended.code, ended.err) == (0, "job_1 is deleted\n")
    deleted = {"id": "job_1", "object": "job", "deleted": True}
    assert nightshift("jobs", "delete", "job_1", "--json").json == deleted
    assert nightshift("jobs", "delete", "job_2").code == 1


def test_events_are_followed_to_the_end_as_lines_or_as_json(nightshift, server):
    lines = nightshift("jobs", "events", "job_1").out.splitlines()
    assert [line.split()[2] for line in lines] == ["job.running", "job.succeeded"]

    told = [json.loads(line) for line in nightshift("jobs", "events", "job_1", "--json").out.splitlines()]
    events = [(event["event_id"], event["type"]) for event in told]
    assert events == [("1-0", "job.running"), ("2-0", "job.succeeded")]


def test_events_and_counts_are_readable_text():
    told = {"id": "job_1", "type": "job.running", "created_at": 1, "status": "running"}
    counts = {"total": None, "succeeded": 2, "failed": 1}

    assert _event_text(told) == "job.running"
    assert _event_text(told | {"counts": counts}) == "job.running  not counted yet, 2 succeeded, 1 failed"
    assert _event_text({"type": "job.stopping", "reason": "cancelled"}) == "job.stopping  reason cancelled"


def test_results_are_printed_as_they_come_and_a_job_that_runs_says_that_there_will_be_more(
    nightshift, server
):
    for id in ("job_1", "batch_1"):
        ended = nightshift("jobs", "results", id)
        assert [json.loads(line)["custom_id"] for line in ended.out.splitlines()] == ["a", "b"]
        assert ended.err == ""

    server.status = "running"
    assert nightshift("jobs", "results", "job_1").err == "job_1 is running: there will be more\n"


def test_the_webhook_secret_is_printed(nightshift, server):
    assert nightshift("webhooks", "secret").out == "whsec_c2VjcmV0\n"
    assert nightshift("webhooks", "secret", "--json").json == {"secret": "whsec_c2VjcmV0"}


def test_without_a_key_a_command_says_where_it_looked(nightshift, data_dir):
    ended = nightshift("jobs", "list")
    assert ended.code == 1
    assert ended.err.startswith("nightshift: NIGHTSHIFT_API_KEY: no API key")
    assert f"start the service with `nightshift up`, which leaves one in {data_dir / 'api_key'}" in ended.err


def test_the_key_that_up_left_is_used_and_an_absent_server_is_said(nightshift, data_dir, monkeypatch):
    data_dir.mkdir()
    (data_dir / "api_key").write_text("ns_live_key\n")
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", "http://127.0.0.1:1")  # no server can listen there
    ended = nightshift("jobs", "list")
    assert ended.code == 69
    assert "Is the server running? `nightshift up` starts one" in ended.err
    assert len(ended.err.splitlines()) == 1
