"""`nightshift estimate` sends the options of a run, waits for the sample, and says what is known."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nightshift.cli.bulk import estimate

ESTIMATE = ("estimate", "s3://in/x.jsonl", "--endpoint", "chat", "--model", "m", "--input-column", "c")
TOKENS = {"total": 400, "mean": 20.0, "p50": 20, "p95": 21, "most": 22, "histogram": {"32": 20}}
RUNNING: dict[str, Any] = {
    "id": "job_1",
    "status": "running",
    "endpoint": "/v1/chat/completions",
    "model": "m",
    "input": {
        "objects": 2,
        "size_bytes": 1000,
        "is_whole": True,
        "rows": 1000,
        "rows_are_exact": False,
        "rows_read": 300,
        "is_spread": False,
        "rows_unusable": 3,
        "duplicates": 7,
        "duplicates_are_exact": False,
        "rows_reused": 970,
    },
    "sample": {"rows": 20, "rows_ended": 0, "errors": {}, "shares_answers": True},
    "figures": None,
    "workers_ready": 2,
    "window_s": 28_800,
    "problems": [],
}
ENDED = RUNNING | {
    "status": "succeeded",
    "sample": RUNNING["sample"] | {"rows_ended": 20, "errors": {"context_length_exceeded": 2}},
    "figures": {
        "rows_to_run": 23,
        "rows_too_long": 2,
        "rows_failing": 2,
        "prompt_tokens": TOKENS,
        "completion_tokens": TOKENS,
        "rows_per_worker_s": 1.5,
        "waits_s": 60.0,
        "eta_s": 3723.0,
        "workers_wanted": 3,
        "worker_hours": 2.0,
        "cost": 4.0,
        "spot_cost": 1.0,
        "saving": 3.0,
    },
}


@pytest.fixture
def answers(server, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The server's answers, one after the other."""
    monkeypatch.setattr(estimate, "POLL_S", 0)
    known: list[dict[str, Any]] = []

    def instead(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.startswith("/v1/jobs/estimate"):
            return None
        if request.method == "POST":
            server.submitted.append(json.loads(request.content))
        return httpx.Response(200, json=known.pop(0))

    server.instead = instead
    return known


def test_the_body_is_that_of_a_run_without_its_output(nightshift, server, answers):
    answers.append(ENDED)
    nightshift(*ESTIMATE, "--window", "8h", "--gpu-hour-price", "2", "--spot-price", "0.5")
    assert server.submitted == [
        {
            "input": "s3://in/x.jsonl",
            "endpoint": "/v1/chat/completions",
            "template": {"model": "m", "messages": [{"role": "user", "content": "{{c}}"}]},
            "priority": "standard",
            "completion_window": "8h",
            "gpu_hour_price": 2.0,
            "spot_price": 0.5,
        }
    ]


def test_it_waits_for_the_sample_and_prints_what_is_known(nightshift, answers):
    answers += [RUNNING, RUNNING, ENDED]
    ended = nightshift(*ESTIMATE)
    assert ended.code == 0
    for said in (
        "about 1000 rows, 300 read",
        "duplicates        about 7",
        "reused            about 970",
        "prompt tokens     400; a row 20, median 20, 95 % 21, most 22",
        "2 (sample: context_length_exceeded 2)",
        "waits             0:01:00",
        "1:02:03 on 2 ready workers",
        "3 within 8:00:00",
        "saving            3.00",
    ):
        assert said in ended.out


def test_it_says_where_the_figures_are_of_a_part_of_the_input(nightshift, answers):
    answers.append(ENDED | {"input": ENDED["input"] | {"is_whole": False}})
    said = nightshift(*ESTIMATE).out
    assert "at least 2 objects" in said
    assert "there are more objects, and all figures are of these alone" in said


def test_json_is_the_answer_as_it_came(nightshift, answers):
    answers += [RUNNING, ENDED]
    assert nightshift(*ESTIMATE, "--json").json == ENDED


def problems() -> Iterator[tuple[dict[str, Any], int]]:
    known: dict[str, Any] = {"code": "c", "message": "Said why.", "row": None, "object": None, "param": None}
    yield known | {"is_permanent": True}, 4
    yield known | {"is_permanent": False}, 1


@pytest.mark.parametrize(("problem", "code"), [*problems()])
def test_a_problem_is_said_and_sets_the_exit_code(nightshift, answers, problem, code):
    answers.append(RUNNING | {"id": None, "status": "failed", "sample": None, "problems": [problem]})
    ended = nightshift(*ESTIMATE)
    assert (ended.code, "Said why." in ended.out) == (code, True)
