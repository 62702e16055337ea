"""`nightshift conformance` against the whole service, as it is and with defects of batches in front of it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest

from conformance.checks import AREAS
from conformance.outcomes import Outcome
from conformance.registry import selected
from conformance.runner import Run
from conformance.session import Options
from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import Service, nightshift
from tests.helpers.altering_proxy import (
    Alteration,
    Asked,
    Forward,
    Reply,
    accepting,
    altering,
    changing,
    replacing,
    setting,
)
from tests.helpers.waiting import wait_for
from tests.integration.api.openai.conformance.conftest import NODE_MODULES

NO_CALLS = {"structured.tool-result", "responses.tool-result"}  # the demo model's template knows none
NO_EMBEDDINGS = {"node.embeddings"}  # and those of its area
NO_LIMITS = {"rates.limits"}  # the tenant has none


def test_the_whole_service_passes_every_check_and_nothing_is_left_on_it(
    service: Service, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_PATH", str(NODE_MODULES))
    before = {file.id for file in client.files.list()}
    ended = nightshift(
        service,
        *("conformance", "--base-url", service.base_url, "--api-key", service.api_key),
        *("--poll-interval", "0.1", "--json", "--time-limit", "120"),
        timeout_s=290.0,  # 126 checks, on a machine that is busy with other tests
    )
    report = json.loads(ended.stdout)
    results = report["results"]

    failed = {result["check"]: result["detail"] for result in results if result["outcome"] == "failed"}
    assert failed == {}
    not_offered = {result["check"] for result in results if result["outcome"] == "not_offered"}
    embeddings = {name for name in not_offered if name.startswith("embeddings.")}
    assert not_offered - embeddings <= NO_CALLS | NO_EMBEDDINGS | NO_LIMITS
    skipped = {result["area"] for result in results if result["outcome"] == "skipped"}
    assert skipped <= {"node"}  # where it is not installed
    assert ended.returncode == 0
    assert report["left_behind"] == []
    assert {file.id for file in client.files.list()} <= before


def when_completed(**fields: object) -> Callable[[Any], Any]:
    return lambda data: data | fields if data.get("status") == "completed" else data


def without_should_retry(request: Asked, forward: Forward) -> Reply:
    reply = forward(request)
    headers = {name: value for name, value in reply.headers.items() if name != "x-should-retry"}
    return replace(reply, headers=headers)


def without_place(request: Asked, forward: Forward) -> Reply:
    """Ranges, lines and events to go on from are ignored."""
    headers = {
        name: value for name, value in request.headers.items() if name not in ("range", "last-event-id")
    }
    return forward(replace(request, headers=headers, path=request.path.partition("?")[0]))


def never_deleting(request: Asked, forward: Forward) -> Reply:
    if request.method == "DELETE":
        return Reply(200, {"content-type": "application/json"}, b'{"deleted": true}')
    return forward(request)


def changing_lines(path: str, change: Callable[[list[bytes]], list[bytes]]) -> Alteration:
    def alter(request: Asked, forward: Forward) -> Reply:
        reply = forward(request)
        lines = change(reply.content.splitlines(keepends=True))
        return replace(reply, content=b"".join(lines)) if re.fullmatch(path, request.path) else reply

    return alter


A_BATCH = "/v1/batches/batch_.*"
CONTENT = "/v1/files/.*/content"
DEFECTS: dict[str, tuple[Alteration, list[str]]] = {
    "a completed batch says that it failed": (
        changing(A_BATCH, when_completed(status="failed")),
        ["batches.completed", "batches.mixed"],
    ),
    "counts are wrong in the end": (
        changing(A_BATCH, when_completed(request_counts={"total": 3, "completed": 3, "failed": 3})),
        ["batches.completed", "batches.mixed"],
    ),
    "times are missing": (setting(A_BATCH, finalizing_at=None), ["batches.times"]),
    "custom ids are lost": (replacing(CONTENT, b"custom_id", b"id_"), ["batches.completed", "batches.mixed"]),
    "lines are no JSON": (replacing(CONTENT, b'{"', b"'"), ["batches.completed", "batches.mixed"]),
    "output files are input files": (setting("/v1/files/.*", purpose="batch"), ["batches.output-file"]),
    "errors name no line": (
        changing(A_BATCH, lambda data: data | {"errors": data["errors"] and {"data": []}}),
        ["batches.invalid-line"],
    ),
    "a cancelled batch is shown running": (
        setting(A_BATCH + "/cancel", status="in_progress"),
        ["batches.cancelled"],
    ),
    "an unknown file is accepted": (accepting(b"file-0000"), ["batches.file-unknown"]),
    "a conflict is repeated": (without_should_retry, ["batches.cancelled-too-late"]),
    "rows of responses are not answered": (
        replacing(CONTENT, b'"object":"response"', b'"object":"x"'),
        ["responses.batch"],
    ),
    "output is in another order": (
        changing_lines(CONTENT, lambda lines: lines[::-1]),
        ["nightshift.gzip-input", "nightshift.output-order"],
    ),
    "a job is never paused": (setting("/v1/jobs/[^/]+", paused_at=None), ["nightshift.paused"]),
    "the partial output is served from its beginning": (without_place, ["nightshift.partial-output"]),
    "events go on from their beginning": (without_place, ["nightshift.events"]),
    "a retry runs every row": (
        changing("/v1/jobs/[^/]+", lambda data: data | {"counts": {"total": 2}}),
        ["nightshift.retried"],
    ),
    "deleted batches stay": (never_deleting, ["nightshift.batch-deleted"]),
}


def test_the_slow_checks_are_each_seen_to_fail() -> None:
    slow = {f"{area.name}.{check.name}" for area in AREAS for check in area.checks if check.is_slow}
    known = {"batches.counts", "node.batch-completed"}  # by other tests
    assert slow - known == {name for _, finding in DEFECTS.values() for name in finding}


def test_a_batch_that_fails_is_found_with_the_node_client_too(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_PATH", str(NODE_MODULES))
    with altering(service.base_url, setting(A_BATCH, status="failed")) as url:
        options = Options(url, service.api_key, DEMO_MODEL_ID, poll_interval_s=0.1)
        [result] = Run(options).results(selected(AREAS, ["node.batch-completed"]))

    if result.outcome is Outcome.SKIPPED:
        pytest.skip(result.detail)
    assert result.outcome is Outcome.FAILED, result.detail


def test_a_batch_that_ends_before_it_is_paused_is_followed_by_a_longer_one(service: Service) -> None:
    jobs: list[str] = []  # that are paused

    def pausing_the_first_too_late(request: Asked, forward: Forward) -> Reply:
        job = request.path.removesuffix("/pause")
        if job != request.path:
            jobs.append(job)
        if jobs == [job]:
            look = replace(request, method="GET", path=job, body=b"")
            wait_for("the batch's end", lambda: json.loads(forward(look).content)["finished_at"] is not None)
        return forward(request)

    with altering(service.base_url, pausing_the_first_too_late) as url:
        options = Options(url, service.api_key, DEMO_MODEL_ID, poll_interval_s=0.1)
        [result] = Run(options).results(selected(AREAS, ["nightshift.paused"]))

    assert len(jobs) > 1, "and a third one where the second, too, is over before it is resumed"
    assert result.outcome is Outcome.PASSED, result.detail


# Each of them is about another kind of answer: states, content, an order, deletions.
KEPT = {"times are missing", "custom ids are lost", "output is in another order", "deleted batches stay"}
EACH_DEFECT = [
    pytest.param(defect, marks=() if defect in KEPT else pytest.mark.exhaustive) for defect in DEFECTS
]


@pytest.mark.parametrize("defect", EACH_DEFECT)
def test_a_defect_of_batches_is_found_by_the_checks_that_are_about_it(service: Service, defect: str) -> None:
    alter, finding = DEFECTS[defect]
    with altering(service.base_url, alter) as url:
        options = Options(url, service.api_key, DEMO_MODEL_ID, poll_interval_s=0.1, batch_time_limit_s=200.0)
        results = list(Run(options).results(selected(AREAS, finding)))

    assert {f"{result.area}.{result.name}": result.outcome for result in results} == dict.fromkeys(
        finding, Outcome.FAILED
    )
    assert all("OpenAI" in result.detail for result in results)
