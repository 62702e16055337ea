"""`nightshift schedules`, as the server is asked and as it is printed."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

NIGHTLY = {"name": "nightly", "cron": "0 1 * * *", "job": {"template": {"model": "m"}}}
DEFAULTS = {"time_zone": "UTC", "overlap": "skip", "after": None, "description": ""}
SERVED = {
    "object": "schedule",
    "version": 1,
    "created_at": 1_700_000_000,
    "updated_at": 1_700_000_000,
    "paused_at": None,
    "next_runs": [1_700_000_000, 1_700_086_400],
    "last_run": None,
    "problem": None,
}
RUN = {
    "object": "schedule.run",
    "id": "run_1",
    "schedule": "nightly",
    "version": 1,
    "due_at": 1_700_000_000,
    "local_date": "2023-11-14",
    "state": "refused",
    "job_id": None,
    "started_at": None,
    "ended_at": 1_700_000_001,
    "reason": "The key was revoked",
}


@dataclass
class Schedules:
    """/v1/schedules, with the schedules by name; every request is noted."""

    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=lambda: RUN)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)  # by name: the field, and the reason

    def __call__(self, request: httpx.Request) -> httpx.Response | None:
        _, _, path = request.url.path.partition("/v1/schedules")
        name, _, action = path.removeprefix("/").partition("/")
        self.seen.append((request.method, request.url.raw_path.decode()))
        if request.method == "PUT":
            return self._put(json.loads(request.content), "dry_run" in request.url.params)
        if not name:
            return _page([*self.there.values()])
        if name not in self.there:
            return _refusal(404, None, f"No such Schedule object: {name}")
        if request.method == "DELETE":
            del self.there[name]
            return httpx.Response(200, json={"name": name, "object": "schedule", "deleted": True})
        return {
            "runs": _page([self.run]),
            "run": httpx.Response(202, json=self.run),
        }.get(action, httpx.Response(200, json=self.there[name]))

    def _put(self, plan: dict[str, Any], is_dry: bool) -> httpx.Response:
        name = plan["name"]
        if name in self.refused:
            return _refusal(400, *self.refused[name])
        before, after = self.there.get(name), SERVED | DEFAULTS | plan
        change = "created" if before is None else "unchanged" if before == after else "updated"
        if not is_dry:
            self.there[name] = after
        return httpx.Response(200, json=after | {"change": change})

    @property
    def changes(self) -> list[tuple[str, str]]:
        """The requests that changed something."""
        return [seen for seen in self.seen if seen[0] != "GET" and "dry_run" not in seen[1]]


def _page(elements: list[dict[str, Any]]) -> httpx.Response:
    return httpx.Response(200, json={"data": elements, "has_more": False, "last_id": None})


def _refusal(status: int, param: str | None, message: str) -> httpx.Response:
    error = {"message": message, "param": param, "code": "invalid_value"}
    return httpx.Response(status, json={"error": error})


@pytest.fixture
def schedules(server):
    server.instead = schedules = Schedules()
    return schedules


def file_of(*plans: dict[str, Any], name: str = "plans.yaml") -> str:
    """A file of these plans, each on two lines; JSON is YAML."""
    lines = [f"  - name: {plan['name']}\n    rest: 1" for plan in plans]
    text = "\n".join(["schedules:", *lines])
    for plan in plans:
        rest = "\n".join(
            f"    {key}: {json.dumps(value)}" for key, value in plan.items() if key != "name"
        ).lstrip()
        text = text.replace("rest: 1", rest, 1)
    Path(name).write_text(text if plans else "schedules: []")
    return name


def test_a_new_plan_is_shown_with_all_that_it_holds_and_is_applied(nightshift, schedules):
    ended = nightshift("schedules", "apply", file_of(NIGHTLY))

    assert (ended.code, ended.err) == (0, "1 created\n")
    assert ended.out.splitlines() == [
        "+ nightly",
        '    time_zone: "UTC"',
        '    overlap: "skip"',
        '    cron: "0 1 * * *"',
        '    job.template.model: "m"',
    ]
    assert schedules.there["nightly"] == SERVED | DEFAULTS | NIGHTLY


def test_what_changes_is_shown_field_by_field_and_nothing_else(nightshift, schedules):
    nightshift("schedules", "apply", file_of(NIGHTLY, NIGHTLY | {"name": "other"}))
    schedules.seen.clear()
    job = {"template": {"model": "m2", "stop": ["a", "b"]}}
    changed = NIGHTLY | {"job": job, "description": "\x1b[2Jnew"}

    ended = nightshift("schedules", "apply", file_of(changed, NIGHTLY | {"name": "other"}))

    assert ended.out.splitlines() == [
        "~ nightly",
        '    description: "\\u001b[2Jnew"',
        '    job.template.model: "m" → "m2"',
        '    job.template.stop: ["a", "b"]',
    ]
    assert (ended.code, ended.err) == (0, "1 updated, 1 unchanged\n")
    assert schedules.changes == [("PUT", f"/v1/schedules/{name}") for name in ("nightly", "other")]


def test_a_dry_run_shows_the_same_and_changes_nothing(nightshift, schedules):
    path = file_of(NIGHTLY)
    dry = nightshift("schedules", "apply", path, "--dry-run")

    assert (dry.code, dry.err, schedules.changes) == (0, "would be: 1 created\n", [])
    assert dry.out == nightshift("schedules", "apply", path).out


def test_a_schedule_in_no_file_is_named_and_only_pruned_when_that_is_said(nightshift, schedules):
    nightshift("schedules", "apply", file_of(NIGHTLY, NIGHTLY | {"name": "old"}))
    schedules.seen.clear()

    kept = nightshift("schedules", "apply", file_of(NIGHTLY))
    assert kept.err == "1 unchanged\nin none of the files, and left as they are: old (--prune deletes)\n"
    would = nightshift("schedules", "apply", file_of(NIGHTLY), "--prune", "--dry-run")
    assert (would.out, would.err) == ("- old\n", "would be: 1 unchanged, 1 deleted\n")
    assert "old" in schedules.there
    schedules.seen.clear()

    pruned = nightshift("schedules", "apply", file_of(NIGHTLY), "--prune")
    assert (pruned.out, pruned.err) == ("- old\n", "1 unchanged, 1 deleted\n")
    assert schedules.changes == [("PUT", "/v1/schedules/nightly"), ("DELETE", "/v1/schedules/old")]


def test_files_are_taken_together(nightshift, schedules):
    one, two = file_of(NIGHTLY, name="a.yaml"), file_of(NIGHTLY | {"name": "other"}, name="b.yaml")
    ended = nightshift("schedules", "apply", one, two, "--prune", "--json")
    assert [(change["name"], change["change"]) for change in ended.json] == [
        ("nightly", "created"),
        ("other", "created"),
    ]
    assert ended.json[0]["fields"]["cron"] == {"before": None, "after": "0 1 * * *"}


def test_a_plan_that_the_server_refuses_is_named_by_its_line_before_anything_is_changed(
    nightshift, schedules
):
    schedules.refused = {"other": ("job.template.model", "The model `m` does not exist.")}
    ended = nightshift("schedules", "apply", file_of(NIGHTLY, NIGHTLY | {"name": "other"}))

    assert (ended.code, ended.out, schedules.changes) == (1, "", [])
    assert ended.err == "nightshift: plans.yaml, line 7: other: The model `m` does not exist.\n"


def test_a_mistake_in_a_file_ends_with_2_and_the_server_is_not_asked(nightshift, schedules):
    Path("plans.yaml").write_text("schedules:\n  - name: a\n    jitter: 1:00\n")
    ended = nightshift("schedules", "apply", "plans.yaml")

    assert (ended.code, ended.out, schedules.seen) == (2, "", [])
    assert ended.err.startswith(
        "nightshift: plans.yaml, line 3: schedules[0].jitter: YAML takes 1:00 for a number: put it in quotes"
    )
    assert ended.err.count("\n") == 1


def test_schedules_are_listed_with_their_next_and_their_last_run(nightshift, schedules):
    nightshift("schedules", "apply", file_of(NIGHTLY))
    paused = SERVED | DEFAULTS | NIGHTLY | {"name": "paused", "paused_at": 1, "next_runs": []}
    lost = SERVED | DEFAULTS | NIGHTLY | {"name": "lost", "cron": None, "after": "nightly", "last_run": RUN}
    schedules.there |= {
        "paused": paused,
        "lost": lost | {"problem": {"code": "key_revoked", "message": "Apply it with another key"}},
    }

    lines = [re.split(r"  +", line) for line in nightshift("schedules", "list").out.splitlines()]
    at, cron = "2023-11-14 22:13:20Z", "0 1 * * *"
    assert lines == [
        ["NAME", "STATE", "NEXT RUN", "LAST RUN", "RESULT", "WHEN", "ZONE", "VERSION"],
        ["nightly", "active", at, cron, "UTC", "1"],
        ["paused", "paused", cron, "UTC", "1"],
        ["lost", "problem (key_revoked)", at, at, "refused", "after nightly", "UTC", "1"],
    ]
    assert nightshift("schedules", "list", "--json").json == [*schedules.there.values()]


def test_a_schedule_is_shown_with_what_is_wrong(nightshift, schedules):
    problem = {"code": "key_revoked", "message": "Apply it with another key"}
    schedules.there["nightly"] = SERVED | NIGHTLY | {"last_run": RUN, "problem": problem}
    ended = nightshift("schedules", "show", "nightly")
    said = [" ".join(line.split()) for line in ended.out.splitlines()]

    assert "problem: Apply it with another key (key_revoked)" in said
    assert "next_runs: 2023-11-14 22:13:20Z, 2023-11-15 22:13:20Z" in said
    assert "last_run: refused, due 2023-11-14 22:13:20Z, no job" in said
    assert 'job: {"template": {"model": "m"}}' in said
    assert nightshift("schedules", "show", "nightly", "--json").json == schedules.there["nightly"]


def test_a_schedule_is_paused_resumed_and_deleted(nightshift, schedules):
    schedules.there["nightly"] = SERVED | NIGHTLY
    assert nightshift("schedules", "pause", "nightly").err == "nightly is paused\n"
    assert nightshift("schedules", "resume", "nightly").err == (
        "nightly goes on; its next run is at 2023-11-14 22:13:20Z\n"
    )
    assert nightshift("schedules", "delete", "nightly").err == "nightly is deleted\n"
    assert schedules.changes == [
        ("POST", "/v1/schedules/nightly/pause"),
        ("POST", "/v1/schedules/nightly/resume"),
        ("DELETE", "/v1/schedules/nightly"),
    ]


def test_a_run_now_prints_the_run(nightshift, schedules):
    schedules.there["nightly"] = SERVED | NIGHTLY
    schedules.run = RUN | {"state": "waiting", "reason": None}
    ended = nightshift("schedules", "run-now", "nightly")
    assert (ended.code, ended.out, ended.err) == (0, "run_1\n", "")
    assert schedules.changes == [("POST", "/v1/schedules/nightly/run")]
    assert nightshift("schedules", "run-now", "nightly", "--json").json == schedules.run


def test_a_run_now_without_an_answer_is_not_tried_again(nightshift, server):
    tries = []

    def breaks(request):
        tries.append(request)
        raise httpx.ReadTimeout("no answer")

    server.instead = breaks
    assert nightshift("schedules", "run-now", "nightly").code != 0
    assert len(tries) == 1


def test_the_history_has_a_run_a_line_with_the_reason(nightshift, schedules):
    schedules.there["nightly"] = SERVED | NIGHTLY
    ended = nightshift("schedules", "history", "nightly", "--limit", "5")
    assert "run_1  2023-11-14 22:13:20Z  2023-11-14  refused" in ended.out
    assert ended.out.rstrip().endswith("1        The key was revoked")
    assert schedules.seen == [("GET", "/v1/schedules/nightly/runs?limit=5")]
    assert nightshift("schedules", "history", "nightly", "--json").json == [RUN]


def test_a_schedule_that_is_not_there_is_an_error_that_says_where_to_look(nightshift, schedules):
    ended = nightshift("schedules", "pause", "nightly")
    assert (ended.code, ended.err) == (
        1,
        "nightshift: No such Schedule object: nightly; `nightshift schedules list` shows those there are\n",
    )
