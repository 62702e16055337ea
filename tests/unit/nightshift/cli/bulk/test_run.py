import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift.cli.bulk.requests_of_rows import InvalidOption, location, template_of

BASICS = ("--output", "s3://out/", "--endpoint", "embeddings")
RUN = ("run", "s3://in/x.jsonl", *BASICS)
REPLAYED = {"Idempotent-Replayed": "true"}
COLUMN = ("--model", "m", "--input-column", "c")


def test_a_column_and_a_model_become_the_template_of_the_job(nightshift, server):
    column = ("--input-column", "text", "--model", "minilm", "--id-column", "id")
    ended = nightshift(*RUN, *column)

    assert (ended.code, ended.out) == (0, "job_1\n")
    assert server.submitted == [
        {
            "input": "s3://in/x.jsonl",
            "output": "s3://out/",
            "endpoint": "/v1/embeddings",
            "template": {"model": "minilm", "input": "{{text}}"},
            "id_column": "id",
            "format": "jsonl",
            "priority": "standard",
            "completion_window": "24h",
        }
    ]


def test_everything_else_that_is_asked_for_is_in_the_body(nightshift, server, tmp_path):
    template = tmp_path / "template.json"
    template.write_text('{"model": "m", "input": "{{a}} {{b}}"}')
    nightshift(
        *(*RUN, "--template", str(template), "--format", "parquet"),
        *("--priority", "background", "--window", "8h", "--webhook", "https://hooks.example/x"),
    )
    [body] = server.submitted
    assert body["template"] == {"model": "m", "input": "{{a}} {{b}}"}
    assert (body["format"], body["priority"], body["completion_window"]) == ("parquet", "background", "8h")
    assert body["webhook"] == {"url": "https://hooks.example/x"}


def test_several_files_are_one_job_in_the_order_in_which_they_are_named(nightshift, server, tmp_path):
    for name in ("b.csv", "a.jsonl"):
        Path(name).touch()

    assert nightshift("run", "b.csv", *BASICS, "a.jsonl", "s3://in/c.parquet").code == 0

    [body] = server.submitted
    here = Path.cwd().as_uri()
    assert body["input"] == [f"{here}/b.csv", f"{here}/a.jsonl", "s3://in/c.parquet"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("gone.csv", "there is no file"),
        ("docs", "docs: an uploaded file, a folder or a pattern is an input by itself"),
        ("s3://in/*.csv", "s3://in/*.csv: an uploaded file, a folder or a pattern"),
        ("s3://in/docs/", "s3://in/docs/: an uploaded file, a folder or a pattern"),
        ("file-1", "file-1: an uploaded file, a folder or a pattern"),
        ("-", "standard input (-) is an input by itself"),
    ],
)
def test_what_cannot_be_one_of_several_inputs_is_named(nightshift, server, word, said):
    Path("a.csv").touch()
    Path("docs").mkdir()

    ended = nightshift("run", "a.csv", word, *BASICS)

    assert ended.code == 2
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert server.submitted == []


def test_so_many_files_that_the_shell_has_replaced_a_pattern_are_asked_for_in_quotes(nightshift, server):
    ended = nightshift("run", *BASICS, *(f"docs/{number}.jsonl.gz" for number in range(257)))

    assert ended.code == 2
    assert "Try: nightshift run 'docs/*.jsonl.gz'" in " ".join(ended.err.split())
    assert server.submitted == []


@pytest.mark.parametrize(
    ("option", "sent"),
    [("id,title", ["id", "title"]), ("all", "all"), ('"a,b",c', ["a,b", "c"]), ("meta.id", ["meta.id"])],
)
def test_columns_to_keep_are_named_with_commas_between(nightshift, server, option, sent):
    assert nightshift(*RUN, "--keep-columns", option).code == 0
    assert server.submitted[0]["keep_columns"] == sent


@pytest.mark.parametrize(
    ("options", "sent"),
    [(["--no-thinking"], "none"), (["--no-thinking", "--reasoning-effort", "none"], "none"), ([], None)],
)
def test_a_job_without_thoughts_has_the_effort_none(nightshift, server, options, sent):
    assert nightshift(*RUN, *options).code == 0
    assert server.submitted[0].get("reasoning_effort") == sent


def test_a_template_is_made_of_a_column_or_read_from_a_file_with_the_model_filled_in(tmp_path):
    chat = {"model": "m", "messages": [{"role": "user", "content": "{{text}}"}]}
    assert template_of("chat", "m", None, "text") == chat
    assert template_of("/v1/completions", "m", None, "text") == {"model": "m", "prompt": "{{text}}"}
    assert template_of("chat", None, None, None) is None, "the rows are requests"

    file = tmp_path / "template.json"
    file.write_text(json.dumps({"messages": chat["messages"]}))
    assert template_of("chat", "m", file, None) == chat


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
            "chat, completions, responses, embeddings, classifications, classify, moderations, rerank, "
            "score, tokenize and detokenize",
        ),
        (("s3://in/x", *BASICS, "--window", "soon"), "--window"),
        (("s3://in/x", *BASICS, "--window", "0h"), "--window"),
        (("s3://in/x", *BASICS[:2], *COLUMN, "--endpoint", "poems"), "--endpoint"),
        (("s3://in/x", "--endpoint", "chat"), "--output"),
        *(
            (("s3://in/x", *BASICS, "--keep-columns", names), "--keep-columns")
            for names in ("", "a,,b", "a,")
        ),
        (("s3://in/x", *BASICS, "--priority", "soon"), "--priority"),
        (("s3://in/x", *BASICS, "--reasoning-effort", "some"), "--reasoning-effort"),
        (("s3://in/x", *BASICS, "--no-thinking", "--reasoning-effort", "low"), "--no-thinking"),
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


def counted(total: int | None, succeeded: int = 0, failed: int = 0) -> dict[str, int | None]:
    return {"total": total, "succeeded": succeeded, "failed": failed}


NO_INPUT = {"code": "no_such_input", "message": "there is nothing at s3://in/x.jsonl."}
NO_BODY = {"code": "x", "message": "The row has no 'body' object; it has the columns: text."}
DENIED = {"code": "storage_denied", "message": "not yours"}
WHERE = "The results of the 2 rows that finished are at /v1/jobs/job_1/results."
INCOMPLETE = {"code": "output_incomplete", "message": WHERE}


@pytest.mark.parametrize(
    ("status", "counts", "errors", "code", "said", "hint"),
    [
        (
            "succeeded",
            counted(3, 3),
            [],
            0,
            "succeeded: 3 rows succeeded, 0 failed, output in s3://out/",
            None,
        ),
        ("succeeded", counted(0), [], 0, "succeeded: 0 rows succeeded, 0 failed, output in s3://out/", None),
        (
            *("succeeded", counted(3, 2, 1), [], 3),
            "succeeded: 2 rows succeeded, 1 failed, output in s3://out/",
            "`nightshift jobs retry job_1`",
        ),
        (
            "cancelled",
            counted(3, 3),
            [],
            5,
            "cancelled: 3 rows succeeded, 0 failed, output in s3://out/",
            None,
        ),
        ("expired", counted(3, 1, 2), [], 6, "expired: 1 row succeeded, 2 failed, output in s3://out/", None),
        ("failed", counted(3, 3), [], 4, "failed: 3 rows succeeded, 0 failed, output in s3://out/", None),
        *(  # never planned: its reason, no output, and no hint at another cause
            (
                *("failed", counted(total), [NO_INPUT], 4),
                "failed: there is nothing at s3://in/x.jsonl; no output was written",
                None,
            )
            for total in (None, 0)
        ),
        (
            *("failed", counted(None), [NO_BODY], 4),
            "failed: The row has no 'body' object; it has the columns: text; no output was written",
            "records need --model and --input-column or --template",
        ),
        (
            *("failed", counted(3, 2, 1), [DENIED, INCOMPLETE], 4),
            f"failed: 2 rows succeeded, 1 failed\n  not yours\n  {WHERE}",
            None,
        ),
    ],
)
def test_with_wait_the_exit_code_and_a_line_say_how_the_job_went(
    nightshift, server, status, counts, errors, code, said, hint
):
    server.status, server.counts, server.errors = status, counts, errors

    ended = nightshift(*RUN, "--wait")

    assert (ended.code, ended.out) == (code, f"job_1 {said}\n")
    assert hint in ended.err if hint else ended.err == ""


def test_a_job_with_a_template_whose_rows_failed_says_what_to_do_and_not_to_use_a_template(
    nightshift, server
):
    filled = (*RUN, *COLUMN, "--wait")
    server.counts = counted(3, 0, 3)
    ended = nightshift(*filled)
    assert "every row has its result, which may be an error" in ended.err
    assert "`nightshift jobs retry job_1`" in ended.err

    server.status, server.errors = "failed", [NO_BODY]
    ended = nightshift(*filled)
    assert (ended.code, ended.err) == (4, "")


def a_failed_row(message: str) -> dict[str, object]:
    error = {"message": message, "code": "invalid_value"}
    return {"id": "row_1_0", "response": {"status_code": 400, "body": {"error": error}}, "error": None}


def test_with_wait_the_error_most_rows_have_is_said(nightshift, server):
    server.counts = counted(4, 1, 3)
    fine = {"id": "row_1_0", "response": {"status_code": 200, "body": {}}, "error": None}
    many = "The row has no column 'txt';\nit has: text."
    places = [f" It is row {number} of 's3://b/k'." for number in range(4)]
    server.rows = [
        fine,
        a_failed_row(f"Too long.{places[1]}"),
        *(a_failed_row(many + place) for place in places[2:]),
    ]

    ended = nightshift(*RUN, "--wait")

    assert ended.code == 3
    why = "nightshift: rows failed, most often: The row has no column 'txt'; it has: text." + places[2]
    assert ended.err.splitlines()[0] == why


def test_with_json_each_event_is_a_line_and_the_whole_job_the_last(nightshift, server):
    ended = nightshift(*RUN, "--wait", "--json")
    *events, job = map(json.loads, ended.out.splitlines())
    assert ended.code == 0
    assert [event["event_id"] for event in events] == ["1-0", "2-0"]
    assert [event["type"] for event in events] == ["job.running", "job.succeeded"]
    assert job == server.job


# -- windows --


def in_a_night(server, *types: str, resumes_at: int | None = 1_700_024_400) -> None:
    """Lets the job wait for its next night, after these events."""
    server.status, server.counts = "running", counted(1000, 400, 2)
    lines = "".join(
        f'id: {number}\nevent: {type}\ndata: {{"type": "{type}"}}\n\n' for number, type in enumerate(types, 1)
    )

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path == "/v1/jobs/job_1/events":
            return httpx.Response(200, text=lines)
        if request.method == "GET" and request.url.path == "/v1/jobs/job_1":
            return httpx.Response(200, json=server.job | {"resumes_at": resumes_at})
        return None

    server.instead = answer


def test_hours_of_the_day_are_a_window_and_a_time_is_none(nightshift, server):
    nightshift(*RUN, "--window", "01:00-06:00")
    nightshift(*RUN, "--window", "22:00-6:00 Europe/Berlin")
    utc, berlin = server.submitted
    assert (utc["window"], berlin["window"]) == ("01:00-06:00 UTC", "22:00-06:00 Europe/Berlin")
    assert "completion_window" not in utc


@pytest.mark.parametrize(
    ("window", "says"),
    [
        ("01:00-06:00 Europe/Berln", "no time zone, such as Europe/Berlin"),
        ("06:00-06:00", "has no length"),
        ("1:00", "is no window such as"),
    ],
)
def test_a_window_that_is_none_is_refused_before_anything_is_sent(nightshift, server, window, says):
    ended = nightshift(*RUN, "--window", window)
    assert ended.code == 2
    assert says in " ".join(ended.err.replace("│", " ").split())
    assert server.submitted == []


def test_the_end_of_the_window_ends_the_wait_with_7_and_says_when_the_rest_goes_on(nightshift, server):
    in_a_night(server, "job.running", "job.paused", "run.missed", "job.shard_returned")
    ended = nightshift(*RUN, "--wait")
    assert ended.code == 7
    assert ended.out == (
        "job_1 paused: 400 rows succeeded, 2 failed; its window has ended, and the rest goes on at "
        "2023-11-15 05:00:00Z\n"
    )


def test_a_window_that_was_missed_on_an_earlier_night_ends_no_wait(nightshift, server):
    in_a_night(server, "run.missed", "job.resumed", "job.cancelled", resumes_at=None)
    server.status = "cancelled"
    assert nightshift(*RUN, "--wait").code == 5


def test_a_repeat_by_day_waits_for_the_next_night_and_ends_with_7_after_it(nightshift, server):
    in_a_night(server, "run.missed", "run.missed")
    opening, after = 1_700_024_400, 1_700_110_800
    answers, first = server.instead, iter((opening, opening))  # by day, and as last night is told again

    def waits(request: httpx.Request) -> httpx.Response | None:
        if request.method == "POST":
            return httpx.Response(202, json={"id": "job_1", "status": "queued"}, headers=REPLAYED)
        if request.url.path == "/v1/jobs/job_1":
            return httpx.Response(200, json=server.job | {"resumes_at": next(first, after)})
        return answers(request)

    server.instead = waits
    ended = nightshift(*RUN, "--wait", "--name", "docs", "--date", "2026-11-20")
    assert ended.code == 7
    assert "goes on at 2023-11-16 05:00:00Z" in ended.out


# -- rows that fail --


def test_failed_rows_are_printed_once_each_without_what_was_asked(nightshift, server):
    server.counts = counted(3, 1, 2)
    server.rows = [
        {"id": "row_1_0", "custom_id": "a", "error": None, "outcome": "errored"}
        | {
            "response": {"status_code": 400, "body": {"error": {"code": "too_long", "message": "Too  long."}}}
        },
        {
            "id": "row_1_1",
            "custom_id": "b\x1b[2J",
            "error": {"code": "row_crashed", "message": "It crashed."},
        },
    ]
    queries = []

    def noted(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/results"):
            queries.append(dict(request.url.params))
        return None

    server.instead = noted
    ended = nightshift(*RUN, "--wait", "--follow-errors")
    assert ended.code == 3
    assert ended.err.splitlines()[:2] == ["a  too_long  Too long.", "b\ufffd[2J  row_crashed  It crashed."]
    assert queries[0] == {"outcome": "errored"}


@pytest.mark.parametrize("command", [(*RUN, "--wait"), ("jobs", "list"), ("schedules", "list")])
def test_a_server_that_does_not_answer_ends_every_command_with_a_code_of_its_own(nightshift, server, command):
    def away(request: httpx.Request) -> httpx.Response | None:
        raise httpx.ConnectError("Connection refused")

    server.instead = away
    ended = nightshift(*command)
    assert ended.code == 69
    assert "NIGHTSHIFT_BASE_URL" in ended.err


def test_a_nightly_run_belongs_to_today_unless_it_says_otherwise(nightshift, server):
    nightshift(*RUN, "--name", "docs")
    nightshift(*RUN, "--name", "docs", "--date", "2026-11-20")

    dates = [body["date"] for body in server.submitted]
    assert dates == [datetime.now().astimezone().date().isoformat(), "2026-11-20"]


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_a_repeated_run_says_that_it_is_the_earlier_job(nightshift, server, wait):
    night = (*RUN, "--name", "docs", "--date", "2026-11-20", *wait)
    first = nightshift(*night)
    server.is_repeat = True
    again = nightshift(*night)

    assert first.err == ""
    assert (again.code, again.out) == (first.code, first.out)
    assert again.err == (
        "nightshift: job_1 was submitted as --name docs --date 2026-11-20 at 2023-11-14 22:13:20Z, and its "
        "status is succeeded: this is the same job, and the input is not read again\n"
    )


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (
            422,
            {"message": "…", "param": "Idempotency-Key", "code": "idempotency_key_reused"},
            r"nightshift: --name docs --date 2026-11-20 is another job already.*",
        ),
        (
            400,
            {"message": "Invalid 'name'.", "param": "name", "code": "invalid_value"},
            r"nightshift: Invalid 'name'\.\n",
        ),
    ],
    ids=["name", "field"],
)
def test_a_refusal_is_said_in_the_words_of_the_options_with_advice(nightshift, server, status, error, said):
    server.refusal = httpx.Response(status, json={"error": error})

    ended = nightshift(*RUN, "--name", "docs", "--date", "2026-11-20")

    assert ended.code == 1
    assert re.fullmatch(said, ended.err, re.DOTALL)


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
    assert nightshift(*RUN, "--wait").code == 0
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
    ended = nightshift(*RUN, "--wait")

    assert (ended.code, looks) == (0, [])


DRY_RUN: dict[str, Any] = {
    "object": "job.dry_run",
    "would_be_accepted": True,
    "existing_job_id": None,
    "refusal": None,
    "endpoint": "/v1/embeddings",
    "model": "minilm",
    "priority": "standard",
    "input": {
        "objects": 2,
        "size_bytes": 99,
        "is_whole": True,
        "rows_estimated": 7,
        "tokens_estimated": 24,
        "formats": ["csv", "jsonl"],
        "separator": ";",
    },
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
        ({}, 0, "2 objects of 99 bytes (csv, jsonl with ';' between values), about 7 rows"),
        (
            {"input": DRY_RUN["input"] | {"objects": 1, "formats": ["parquet"], "separator": None}},
            *(0, "  1 object of 99 bytes (parquet), about 7 rows"),
        ),
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


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f"}}
CONVERSATIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
            "tools": [TOOL],
            "chat_template_kwargs": {"enable_thinking": False},
            "max_tokens": 5,
        },
        {
            "messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
            "tools": [TOOL],
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    (
        "/v1/responses",
        {"input": "a", "instructions": "Be kind.", "reasoning": {"effort": "low"}},
        {
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "a"}],
            "reasoning_effort": "low",
        },
    ),
]


@pytest.mark.parametrize(("endpoint", "fields", "sent"), CONVERSATIONS, ids=["chat", "responses"])
def test_a_dry_run_shows_what_the_models_template_makes_of_the_first_row(
    nightshift, server, endpoint, fields, sent
):
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/jobs":
            requests = [{"body": {"model": "m"} | fields, "body_start": None}]
            return httpx.Response(200, json=DRY_RUN | {"endpoint": endpoint, "requests": requests})
        bodies.append(json.loads(request.content))
        is_first = request.url.path == "/v1/tokenize"
        return httpx.Response(200, json={"tokens": [7]} if is_first else {"prompt": "<user>ä\n"})

    server.instead = answer
    ended = nightshift("run", "s3://in/x", *BASICS, "--dry-run")

    assert ended.code == 0
    assert 'as the model reads it: "<user>ä\\n"' in ended.out
    said = {name: value for name, value in bodies[0].items() if value is not None}
    assert said == {"model": "m", "add_generation_prompt": True, "continue_final_message": False, **sent}
    assert bodies[1] == {"model": "m", "tokens": [7]}
    assert server.submitted == []


def test_a_dry_run_says_why_the_models_text_is_not_shown(nightshift, server):
    refusal = {"message": "The template refused: no.", "type": "invalid_request_error", "param": "messages"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/jobs":
            return httpx.Response(400, json={"error": refusal})
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
        requests = [{"body": body, "body_start": None}]
        return httpx.Response(200, json=DRY_RUN | {"endpoint": "/v1/chat/completions", "requests": requests})

    server.instead = answer
    ended = nightshift("run", "s3://in/x", *BASICS, "--dry-run")

    assert ended.code == 0
    assert "the text that the model reads cannot be shown: The template refused: no." in ended.out
