import json

import httpx
import pytest

from nightshift.cli.jobs import _event_text


def test_jobs_are_listed_as_a_table(nightshift, server):
    ended = nightshift("jobs", "list")
    headings, line = ended.out.splitlines()
    assert headings.split() == [
        "JOB",
        "STATUS",
        "NAME",
        "DATE",
        "PRIORITY",
        "ENDPOINT",
        "MODEL",
        "DONE",
        "FAILED",
        "ROWS",
        "CREATED",
    ]
    about = ["job_1", "succeeded", "docs", "2026-11-20", "standard", "/v1/embeddings", "minilm"]
    assert line.split()[:7] == about
    assert line.endswith("2023-11-14 22:13:20Z")


def test_jobs_are_listed_as_json(nightshift, server):
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


def test_a_switch_of_a_job_is_shown_as_json_has_it(nightshift, server):
    server.instead = lambda request: httpx.Response(200, json=server.job | {"keep_body": False})
    assert "keep_body:           false\n" in nightshift("jobs", "show", "job_1").out


@pytest.mark.parametrize(
    ("is_permanent", "line"),
    [
        (False, "the output cannot be written at present: the bucket is away; tried again"),
        (True, "the output cannot be written: the bucket is away; the job stops"),
    ],
)
def test_what_keeps_an_output_from_being_written_is_a_line(nightshift, server, is_permanent, line):
    problem = {"code": "storage_unavailable", "message": "the bucket is away.", "is_permanent": is_permanent}
    server.instead = lambda request: httpx.Response(200, json=server.job | {"output_problem": problem})
    assert f"output_problem:      {line}\n" in nightshift("jobs", "show", "job_1").out


@pytest.mark.parametrize(("is_permanent", "rest"), [(False, "tried again"), (True, "the job fails with it")])
def test_what_keeps_a_job_from_going_on_is_a_line_that_acts_on_no_terminal(
    nightshift, server, is_permanent, rest
):
    problem = {"code": "no_worker", "message": "None is there\x1b[2J.", "is_permanent": is_permanent}
    server.instead = lambda request: httpx.Response(200, json=server.job | {"problem": problem})
    assert f"problem:             None is there\ufffd[2J; {rest}\n" in nightshift("jobs", "show", "job_1").out


def test_a_job_is_known_by_its_batch_id_too(nightshift, server):
    assert nightshift("jobs", "show", "batch_1", "--json").json == server.job
    assert nightshift("jobs", "results", "batch_1").code == 0


def test_a_job_is_shown_as_json(nightshift, server):
    assert nightshift("jobs", "show", "job_1", "--json").json == server.job


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
    assert nightshift("jobs", "delete", "job_1", "--json").json == {
        "id": "job_1",
        "object": "job",
        "deleted": True,
    }
    assert nightshift("jobs", "delete", "job_2").code == 1


def test_events_are_followed_to_the_end(nightshift, server):
    assert [line.split()[2] for line in nightshift("jobs", "events", "job_1").out.splitlines()] == [
        "job.running",
        "job.succeeded",
    ]


def test_events_and_counts_are_readable_text():
    told = {"id": "job_1", "type": "job.running", "created_at": 1, "status": "running"}
    counts = {"total": None, "succeeded": 2, "failed": 1}

    assert _event_text(told) == "job.running"
    assert _event_text(told | {"counts": counts}) == "job.running  not counted yet, 2 succeeded, 1 failed"
    assert _event_text({"type": "job.stopping", "reason": "cancelled"}) == "job.stopping  reason cancelled"


def test_events_as_json_are_one_object_a_line(nightshift, server):
    lines = [json.loads(line) for line in nightshift("jobs", "events", "job_1", "--json").out.splitlines()]
    assert [(line["event_id"], line["type"]) for line in lines] == [
        ("1-0", "job.running"),
        ("2-0", "job.succeeded"),
    ]


def test_results_are_printed_as_they_come(nightshift, server):
    ended = nightshift("jobs", "results", "job_1")
    assert [json.loads(line)["custom_id"] for line in ended.out.splitlines()] == ["a", "b"]
    assert ended.err == ""


def test_results_of_a_job_that_still_runs_say_that_there_will_be_more(nightshift, server):
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
    assert ended.code == 1
    assert "Is the server running? `nightshift up` starts one" in ended.err
    assert len(ended.err.splitlines()) == 1
