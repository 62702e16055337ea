import json


def test_jobs_are_listed_as_a_table(nightshift, server):
    ended = nightshift("jobs", "list")
    headings, line = ended.out.splitlines()
    assert headings.split() == [
        "JOB",
        "STATUS",
        "PRIORITY",
        "ENDPOINT",
        "MODEL",
        "DONE",
        "FAILED",
        "ROWS",
        "CREATED",
    ]
    assert line.split()[:5] == ["job_1", "succeeded", "standard", "/v1/embeddings", "minilm"]
    assert line.endswith("2023-11-14 22:13:20Z")


def test_jobs_are_listed_as_json(nightshift, server):
    assert nightshift("jobs", "list", "--json").json == [server.job]


def test_a_job_is_shown_in_lines_without_what_is_empty(nightshift, server):
    out = nightshift("jobs", "show", "job_1").out
    assert "status:              succeeded\n" in out
    assert 'counts:              {"total": 3, "succeeded": 3, "failed": 0}\n' in out
    assert "created_at:          2023-11-14 22:13:20Z\n" in out
    assert "errors" not in out


def test_a_job_is_known_by_its_batch_id_too(nightshift, server):
    assert nightshift("jobs", "show", "batch_1", "--json").json == server.job
    assert nightshift("jobs", "results", "batch_1").code == 0


def test_a_job_is_shown_as_json(nightshift, server):
    assert nightshift("jobs", "show", "job_1", "--json").json == server.job


def test_a_job_that_is_not_there_is_one_line_and_exit_code_1(nightshift, server):
    ended = nightshift("jobs", "show", "job_2")
    assert (ended.code, ended.out, ended.err) == (1, "", "nightshift: id: No such object.\n")


def test_cancelling_says_what_became_of_the_job(nightshift, server):
    server.status = "running"
    ended = nightshift("jobs", "cancel", "job_1")
    assert (ended.code, ended.err) == (0, "job_1 is cancelled\n")


def test_events_are_followed_to_the_end(nightshift, server):
    assert [line.split()[2] for line in nightshift("jobs", "events", "job_1").out.splitlines()] == [
        "job.running",
        "job.succeeded",
    ]


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
    assert str(data_dir / "api_key") in ended.err


def test_the_key_that_up_left_is_used_and_an_absent_server_is_said(nightshift, data_dir, monkeypatch):
    data_dir.mkdir()
    (data_dir / "api_key").write_text("ns_live_key\n")
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", "http://127.0.0.1:1")  # no server can listen there
    ended = nightshift("jobs", "list")
    assert ended.code == 1
    assert "Is the server running? `nightshift up` starts one" in ended.err
    assert len(ended.err.splitlines()) == 1
