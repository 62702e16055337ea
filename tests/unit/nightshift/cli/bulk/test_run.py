import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift.cli.bulk.requests_of_rows import InvalidOption, location, template_of

BASICS = ("--output", "s3://out/", "--endpoint", "embeddings")


def test_a_column_and_a_model_become_the_template_of_the_job(nightshift, server):
    ended = nightshift(
        "run",
        "s3://in/docs.parquet",
        *BASICS,
        "--input-column",
        "text",
        "--model",
        "minilm",
        "--id-column",
        "id",
    )

    assert ended.code == 0
    assert ended.out == "job_1\n"
    assert server.submitted == [
        {
            "input": "s3://in/docs.parquet",
            "output": "s3://out/",
            "endpoint": "/v1/embeddings",
            "template": {"model": "minilm", "input": "{{text}}"},
            "id_column": "id",
            "format": "jsonl",
            "priority": "standard",
            "completion_window": "24h",
        }
    ]


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (("a.csv", "b.csv", *BASICS), "*.csv"),
        ((*BASICS, "docs/a.jsonl.gz", "docs/b.jsonl.gz", "docs/c.jsonl.gz"), "docs/*.jsonl.gz"),
    ],
)
def test_a_pattern_that_the_shell_has_replaced_is_asked_for_in_quotes(nightshift, server, words, pattern):
    ended = nightshift("run", *words)

    assert ended.code == 2
    assert f"Try: nightshift run '{pattern}'" in " ".join(ended.err.split())
    assert server.submitted == []


def test_limits_are_the_jobs(nightshift, server):
    limits = {"max_error_rate": 0.1, "max_failed_rows": 0, "max_tokens_total": 10**9, "row_timeout": "30s"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]

    assert nightshift("run", "s3://in/docs.parquet", *BASICS, *options).code == 0
    [submitted] = server.submitted
    assert {name: submitted[name] for name in limits} == limits


@pytest.mark.parametrize(
    ("option", "sent"),
    [("id,title", ["id", "title"]), ("all", "all"), ('"a,b",c', ["a,b", "c"]), ("meta.id", ["meta.id"])],
)
def test_columns_to_keep_are_named_with_commas_between(nightshift, server, option, sent):
    assert nightshift("run", "s3://in/docs.parquet", *BASICS, "--keep-columns", option).code == 0
    assert server.submitted[0]["keep_columns"] == sent


@pytest.mark.parametrize("option", ["", "a,,b", "a,"])
def test_columns_to_keep_without_a_name_are_a_mistake(nightshift, server, option):
    ended = nightshift("run", "s3://in/docs.parquet", *BASICS, "--keep-columns", option)
    assert (ended.code, server.submitted) == (2, [])
    assert "--keep-columns" in ended.err


def test_a_chat_column_becomes_a_user_message():
    assert template_of("chat", "m", None, "text") == {
        "model": "m",
        "messages": [{"role": "user", "content": "{{text}}"}],
    }
    assert template_of("/v1/completions", "m", None, "text") == {"model": "m", "prompt": "{{text}}"}


def test_rows_that_are_requests_need_no_template():
    assert template_of("chat", None, None, None) is None


def test_a_template_file_is_sent_with_the_model_filled_in(tmp_path):
    file = tmp_path / "template.json"
    file.write_text('{"messages": [{"role": "user", "content": "Sum up: {{text}}"}]}')
    assert template_of("chat", "m", file, None) == {
        "messages": [{"role": "user", "content": "Sum up: {{text}}"}],
        "model": "m",
    }


@pytest.mark.parametrize(
    ("content", "model", "complaint"),
    [
        ("{", None, "cannot be read as JSON"),
        ("[]", None, "is not a JSON object"),
        ('{"model": "a"}', "b", "names another model, 'a'"),
    ],
)
def test_a_template_that_makes_no_sense_is_refused(tmp_path, content, model, complaint):
    file = tmp_path / "template.json"
    file.write_text(content)
    with pytest.raises(InvalidOption, match=complaint):
        template_of("chat", model, file, None)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("in.jsonl", *BASICS), "INPUT"),
        (("s3://in/x", *BASICS, "--input-column", "text"), "--model"),
        (("s3://in/x", *BASICS, "--date", "2026-11-20"), "--date"),
        (("s3://in/x", *BASICS, "--model", "m"), "--input-column or --template"),
        (
            ("s3://in/x", "--endpoint", "embedings", "--output", "s3://o/"),
            "chat, completions, responses, embeddings, classifications, rerank and score",
        ),
        (("s3://in/x", *BASICS, "--window", "soon"), "--window"),
        (("s3://in/x", *BASICS, "--window", "0h"), "--window"),
        (
            (
                "s3://in/x",
                "--endpoint",
                "poems",
                "--output",
                "s3://o/",
                "--model",
                "m",
                "--input-column",
                "c",
            ),
            "--endpoint",
        ),
        (("s3://in/x", "--endpoint", "chat"), "--output"),
        (("s3://in/x", *BASICS, "--priority", "soon"), "--priority"),
    ],
)
def test_a_mistake_in_the_options_ends_with_2_and_names_the_option(nightshift, server, arguments, field):
    ended = nightshift("run", *arguments)
    assert ended.code == 2
    assert field in " ".join(ended.err.split())
    assert server.submitted == []


def test_a_path_that_this_user_may_not_look_at_is_left_to_the_service(tmp_path, monkeypatch):
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    assert location(f"{tmp_path}/closed/a.csv", must_exist=True) == f"{tmp_path.as_uri()}/closed/a.csv"


def test_local_paths_become_absolute_uris(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in put.jsonl").touch()
    (tmp_path / "docs").mkdir()
    assert location("in put.jsonl", must_exist=True) == f"{tmp_path.as_uri()}/in%20put.jsonl"
    assert location("docs", must_exist=True) == f"{tmp_path.as_uri()}/docs/"
    assert location("docs/*.parquet", must_exist=True) == f"{tmp_path.as_uri()}/docs/%2A.parquet"
    assert location("out", is_directory=True) == f"{tmp_path.as_uri()}/out/"
    assert location("docs/../out/", is_directory=True) == f"{tmp_path.as_uri()}/out/"
    with pytest.raises(InvalidOption, match=r"in put\.jsonl is a file: name a folder"):
        location("in put.jsonl", is_directory=True)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/docs/*.parquet", "s3a://bucket/a.csv", "file:///srv/in/", "file-abc123"]
)
def test_uris_and_file_ids_are_passed_as_they_are(uri):
    assert location(uri, must_exist=True) == uri


@pytest.mark.parametrize(
    ("status", "failed", "code"),
    [("succeeded", 0, 0), ("succeeded", 1, 3), ("failed", 0, 4), ("cancelled", 0, 5), ("expired", 2, 6)],
)
def test_with_wait_the_exit_code_says_how_it_went(nightshift, server, status, failed, code):
    server.status = status
    server.counts = {"total": 3, "succeeded": 3 - failed, "failed": failed}

    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert ended.code == code
    rows = "1 row" if failed == 2 else f"{3 - failed} rows"
    assert ended.out == f"job_1 {status}: {rows} succeeded, {failed} failed, output in s3://out/\n"


def test_a_job_that_succeeded_though_rows_failed_says_so_and_what_to_do(nightshift, server):
    server.counts = {"total": 3, "succeeded": 0, "failed": 3}
    failed = nightshift("run", "s3://in/x.jsonl", *BASICS, "--model", "m", "--input-column", "c", "--wait")
    server.counts = {"total": 3, "succeeded": 3, "failed": 0}
    fine = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert "every row has its result, which may be an error" in failed.err
    assert "`nightshift jobs retry job_1`" in failed.err
    assert fine.err == ""


def a_failed_row(message: str) -> dict[str, object]:
    error = {"message": message, "code": "invalid_value"}
    return {"id": "row_1_0", "response": {"status_code": 400, "body": {"error": error}}, "error": None}


def test_with_wait_the_error_most_rows_have_is_said(nightshift, server):
    server.counts = {"total": 4, "succeeded": 1, "failed": 3}
    fine = {"id": "row_1_0", "response": {"status_code": 200, "body": {}}, "error": None}
    many = "The row has no column 'txt';\nit has: text."
    places = [f" It is row {number} of 's3://b/k'." for number in range(4)]
    server.rows = [
        fine,
        a_failed_row(f"Too long.{places[1]}"),
        *(a_failed_row(many + place) for place in places[2:]),
    ]

    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert ended.code == 3
    why = "nightshift: rows failed, most often: The row has no column 'txt'; it has: text." + places[2]
    assert ended.err.splitlines()[0] == why


@pytest.mark.parametrize("total", [None, 0])
def test_a_job_that_was_never_planned_says_why_and_claims_no_output(nightshift, server, total):
    server.status = "failed"
    server.counts = {"total": total, "succeeded": 0, "failed": 0}
    server.errors = [{"code": "no_such_input", "message": "there is nothing at s3://in/x.jsonl."}]

    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert ended.code == 4
    assert ended.out == "job_1 failed: there is nothing at s3://in/x.jsonl; no output was written\n"
    assert ended.err == ""  # a hint at another cause would hide this one


def test_a_job_without_a_complete_output_says_where_its_finished_rows_are_and_claims_none(nightshift, server):
    server.status = "failed"
    server.counts = {"total": 3, "succeeded": 2, "failed": 1}
    where = "The results of the 2 rows that finished are at /v1/jobs/job_1/results."
    server.errors = [
        {"code": "storage_denied", "message": "not yours"},
        {"code": "output_incomplete", "message": where},
    ]

    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert ended.code == 4
    assert ended.out == f"job_1 failed: 2 rows succeeded, 1 failed\n  not yours\n  {where}\n"


def test_records_without_a_template_are_told_what_they_lack(nightshift, server):
    server.status = "failed"
    server.counts = {"total": None, "succeeded": 0, "failed": 0}
    server.errors = [{"code": "x", "message": "The row has no 'body' object; it has the columns: text."}]

    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert "records need --model and --input-column or --template" in ended.err


def test_with_a_template_there_is_no_advice_to_use_one(nightshift, server):
    server.status = "failed"
    ended = nightshift(
        *("run", "s3://in/x.jsonl", *BASICS, "--wait"), *("--model", "minilm", "--input-column", "text")
    )
    assert (ended.code, ended.err) == (4, "")


def test_an_empty_input_that_succeeded_has_output(nightshift, server):
    server.counts = {"total": 0, "succeeded": 0, "failed": 0}
    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")
    assert (ended.code, ended.out) == (
        0,
        "job_1 succeeded: 0 rows succeeded, 0 failed, output in s3://out/\n",
    )


def test_with_json_the_whole_job_is_printed(nightshift, server):
    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait", "--json")
    assert ended.code == 0
    assert ended.json == server.job


def test_a_nightly_run_belongs_to_today_unless_it_says_otherwise(nightshift, server):
    nightshift("run", "s3://in/x.jsonl", *BASICS, "--name", "docs")
    nightshift("run", "s3://in/x.jsonl", *BASICS, "--name", "docs", "--date", "2026-11-20")

    dates = [body["date"] for body in server.submitted]
    assert dates == [datetime.now().astimezone().date().isoformat(), "2026-11-20"]


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_a_repeated_run_says_that_it_is_the_earlier_job(nightshift, server, wait):
    night = ("run", "s3://in/x.jsonl", *BASICS, "--name", "docs", "--date", "2026-11-20", *wait)
    first = nightshift(*night)
    server.is_repeat = True
    again = nightshift(*night)

    assert first.err == ""
    assert (again.code, again.out) == (first.code, first.out)
    assert again.err == (
        "nightshift: job_1 was submitted as --name docs --date 2026-11-20 at 2023-11-14 22:13:20Z, and its "
        "status is succeeded: this is the same job, and the input is not read again\n"
    )


def test_everything_else_asked_for_is_in_the_body(nightshift, server, tmp_path):
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"model": "m", "input": "{{a}} {{b}}"}))
    nightshift(
        *("run", "s3://in/x.jsonl", *BASICS, "--template", str(template), "--format", "parquet"),
        *("--priority", "background", "--window", "8h", "--webhook", "https://hooks.example/x"),
    )
    [body] = server.submitted
    assert body["template"] == {"model": "m", "input": "{{a}} {{b}}"}
    assert (body["format"], body["priority"], body["completion_window"]) == ("parquet", "background", "8h")
    assert body["webhook"] == {"url": "https://hooks.example/x"}


def test_a_place_the_server_does_not_allow_comes_with_advice(nightshift, server):
    error = {"message": "jobs may not name /srv", "param": "input", "code": "location_not_allowed"}
    server.refusal = httpx.Response(400, json={"error": error})

    ended = nightshift("run", "file:///srv/x.jsonl", *BASICS)

    assert ended.code == 1
    assert "jobs may not name /srv" in ended.err
    assert "NIGHTSHIFT_FILE_ROOTS" in ended.err


def test_a_name_used_for_another_job_is_said_in_the_words_of_the_options(nightshift, server):
    error = {"message": "…", "param": "Idempotency-Key", "code": "idempotency_key_reused"}
    server.refusal = httpx.Response(422, json={"error": error})

    ended = nightshift("run", "s3://b/x.jsonl", *BASICS, "--name", "docs", "--date", "2026-11-20")

    assert ended.code == 1
    assert ended.err.startswith("nightshift: --name docs --date 2026-11-20 is another job already")


def test_a_refusal_is_one_line_with_the_field_named(nightshift, server):
    error = {"message": "Invalid 'completion_window'.", "param": "completion_window", "code": "invalid_value"}
    server.refusal = httpx.Response(400, json={"error": error})

    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--window", "99d")

    assert ended.code == 1
    assert ended.err == "nightshift: Invalid 'completion_window'.\n"


def test_with_wait_a_job_is_looked_at_again_while_no_event_comes(nightshift, server, monkeypatch):
    shown = []
    monkeypatch.setattr("nightshift.cli.bulk.progress.is_interactive", lambda: True)
    monkeypatch.setattr(
        "nightshift.cli.bulk.progress.ProblemLines.show", lambda lines, job: shown.append(job.data)
    )
    events = ": ping\n\n" * 2 + 'id: 1-0\nevent: job.succeeded\ndata: {"type": "job.succeeded"}\n\n'

    def with_pings(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, text=events) if request.url.path.endswith("/events") else None

    server.instead = with_pings
    assert nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait").code == 0
    assert shown == [server.job] * 3


def test_with_wait_a_server_that_restarts_meanwhile_is_waited_for(nightshift, server):
    looks = [("/events", 503), ("/job_1", httpx.ConnectError("refused")), ("/job_1", 502)]

    def restart(request: httpx.Request) -> httpx.Response | None:
        if not looks or request.method != "GET" or not request.url.path.endswith(looks[0][0]):
            return None
        trouble = looks.pop(0)[1]
        if isinstance(trouble, Exception):
            raise trouble
        return httpx.Response(trouble, text="<html>nginx</html>")

    server.instead = restart
    ended = nightshift("run", "s3://in/x.jsonl", *BASICS, "--wait")

    assert (ended.code, looks) == (0, [])


DRY_RUN: dict[str, Any] = {
    "object": "job.dry_run",
    "would_be_accepted": True,
    "existing_job_id": None,
    "refusal": None,
    "model": "minilm",
    "priority": "standard",
    "input": {"objects": 2, "size_bytes": 99, "is_whole": True, "rows_estimated": 7, "tokens_estimated": 24},
    "rows_checked": 7,
    "rows_with_problems": 0,
    "requests": [{"body": {"input": "a"}, "body_start": None}],
    "problems": [],
    "is_cut_off": False,
}
A_ROW = {
    "code": "missing_column",
    "message": "No such column.",
    "object": "s3://in/a",
    "row": 3,
    "is_permanent": True,
}
THE_JOB = A_ROW | {"code": "empty_input", "message": "The input has no rows.", "object": None, "row": None}
WAITING = THE_JOB | {"message": "The input cannot be read at present: x.", "is_permanent": False}
REFUSED = {"would_be_accepted": False, "refusal": {"message": "Too many."}}


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({}, 0, "2 objects of 99 bytes, about 7 rows"),
        ({"input": DRY_RUN["input"] | {"objects": 1}}, 0, "  1 object of 99 bytes, about 7 rows"),
        ({"problems": [A_ROW], "rows_with_problems": 1}, 3, "s3://in/a row 3: No such column."),
        ({"problems": [THE_JOB]}, 4, "The input has no rows."),
        ({"problems": [WAITING]}, 1, "cannot be read at present: x; the job would wait and try again"),
        ({"problems": [WAITING, THE_JOB]}, 4, "The input has no rows."),
        ({"rows_checked": 1}, 0, "  1 row checked, 0 with a problem"),
        ({"input": DRY_RUN["input"] | {"rows_estimated": 1}}, 0, "about 1 row\n"),
        (REFUSED, 1, "it would be refused now: Too many."),
    ],
)
def test_a_dry_run_says_what_would_happen_and_exits_accordingly(nightshift, server, change, code, said):
    bodies = []

    def answer(request):
        bodies.append(request.url.params["dry_run"])
        return httpx.Response(200, json=DRY_RUN | change)

    server.instead = answer
    ended = nightshift("run", "s3://in/x", *BASICS, "--dry-run")

    assert (ended.code, bodies, server.submitted) == (code, ["true"], [])
    assert said in ended.out
