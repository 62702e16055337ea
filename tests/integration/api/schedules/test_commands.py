"""`nightshift schedules` against the real routes: what is applied is what the file says, and only once."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.cli.main import main
from nightshift.client import Client
from nightshift.schedules.plans import ScheduleProblem
from tests.integration.api.conftest import KeyMaker

Command = Callable[..., "Ended"]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def key(make_key: KeyMaker) -> str:
    return make_key()


@pytest.fixture
def schedules(
    base_url: str, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", base_url)
    monkeypatch.setenv("NIGHTSHIFT_API_KEY", key)

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["schedules", *map(str, arguments)])
        captured = capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def client(base_url: str, key: str) -> Iterator[Client]:  # type: ignore[override]
    with Client(base_url, key) as client:
        yield client


@pytest.fixture
def plans(tmp_path: Path, bulk: dict[str, Any]) -> Path:
    """A plan of one o'clock, and one that follows it and stands above it."""
    job = json.dumps({"endpoint": bulk["endpoint"], "input": bulk["input"]})
    path = tmp_path / "plans.yaml"
    path.write_text(f"""
schedules:
  - name: report
    after: nightly
    job: {job[:-1]}, "output": "{bulk["output"]}report/{{{{date}}}}/"}}
  - name: nightly
    cron: "0 1 * * *"
    time_zone: Europe/Berlin
    job: {job[:-1]}, "output": "{bulk["output"]}{{{{date}}}}/"}}
    webhook: {{url: "https://hooks.example/x", secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}
""")
    return path


def change(path: Path, before: str, after: str) -> Path:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    return path


def test_what_a_dry_run_shows_is_applied_and_the_second_time_nothing_changes(schedules, client, plans):
    dry = schedules("apply", plans, "--dry-run")
    assert (dry.code, dry.err) == (0, "would be: 2 created\n")
    assert list(client.schedules()) == []

    applied = schedules("apply", plans)
    assert (applied.code, applied.out) == (0, dry.out)
    assert '    time_zone: "Europe/Berlin"' in applied.out
    assert '    webhook.url: "https://hooks.example/x"' in applied.out
    assert "whsec" not in applied.out
    assert {one["name"]: (one["after"], one["problem"]) for one in client.schedules()} == {
        "nightly": (None, None),
        "report": ("nightly", None),
    }
    again = schedules("apply", plans)
    assert (again.out, again.err) == ("", "2 unchanged\n")


def test_a_change_is_shown_alone_and_is_a_version(schedules, client, plans):
    schedules("apply", plans)
    changed = schedules("apply", change(plans, "0 1 * * *", "0 2 * * *"))

    assert changed.out == '~ nightly\n    cron: "0 1 * * *" → "0 2 * * *"\n'
    assert changed.err == "1 updated, 1 unchanged\n"
    crons = [version["plan"]["cron"] for version in client.schedule_versions("nightly")]
    assert crons == ["0 2 * * *", "0 1 * * *"]


def test_a_change_that_no_answer_shows_is_said_without_it(schedules, plans):
    schedules("apply", plans)
    changed = schedules("apply", change(plans, "whsec_MfKQ9r8G", "whsec_NfKQ9r8G"))
    assert changed.out == "~ nightly\n    webhook.secret, or another field that is not shown\n"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("0 1 * * *", "0 0 31 2 *", "line 7: nightly: Invalid 'cron': "),
        ("0 1 * * *", "0 0 1 * * *", "line 7: nightly: Invalid 'cron': "),
        ("Europe/Berlin", "Europe/Berln", "line 8: nightly: Invalid 'time_zone': "),
        (
            "time_zone",
            "timezone",
            "line 8: nightly: Unknown parameter: 'timezone'. Did you mean 'time_zone'?",
        ),
        ('{{date}}/"}\n    webhook', '"}\n    webhook', "line 9: nightly: Invalid 'job.output': "),
    ],
)
def test_what_the_server_refuses_has_its_line_and_changes_nothing(
    schedules, client, plans, before, after, said
):
    ended = schedules("apply", change(plans, before, after))
    assert (ended.code, ended.out) == (1, "")
    assert said in ended.err
    assert list(client.schedules()) == []


def test_an_unchanged_plan_is_applied_on_behalf_of_another_key(
    schedules, client, plans, make_key, store, monkeypatch
):
    schedules("apply", plans)
    with store.transaction() as tx:
        before = tx.schedules.named("default", "nightly")
        tx.schedules.update(replace(before, problem=ScheduleProblem("key_revoked", "Apply the plan again.")))
    assert schedules("list").out.count("problem (key_revoked)") == 1

    monkeypatch.setenv("NIGHTSHIFT_API_KEY", make_key())
    assert schedules("apply", plans, "--dry-run").err == "would be: 2 unchanged\n"
    assert client.get_schedule("nightly")["problem"] is not None
    assert schedules("apply", plans).err == "2 unchanged\n"
    assert client.get_schedule("nightly")["problem"] is None


def test_plans_change_places_and_a_circle_is_a_mistake_in_the_file(schedules, client, plans):
    schedules("apply", plans)
    change(plans, "after: nightly", 'cron: "0 3 * * *"')
    change(plans, 'cron: "0 1 * * *"', "after: report")

    assert schedules("apply", plans, "--dry-run").err == "would be: 2 updated\n"
    assert schedules("apply", plans).err == "2 updated\n"
    assert {one["name"]: one["after"] for one in client.schedules()} == {"nightly": "report", "report": None}

    circle = schedules("apply", change(plans, 'cron: "0 3 * * *"', "after: nightly"))
    assert (circle.code, circle.out) == (2, "")
    assert "`after` goes in a circle: " in circle.err


def test_a_pruned_schedule_is_gone_and_a_paused_one_stays_paused(schedules, client, plans):
    schedules("apply", plans)
    assert schedules("pause", "nightly").code == 0
    text = plans.read_text()
    plans.write_text(text[: text.index("  - name: report")] + text[text.index("  - name: nightly") :])

    assert schedules("apply", plans, "--prune").err == "1 unchanged, 1 deleted\n"
    [left] = client.schedules()
    assert (left["name"], left["next_runs"]) == ("nightly", [])
    assert left["paused_at"] is not None


def test_a_run_now_is_in_the_history_and_a_second_one_is_refused(schedules, plans):
    schedules("apply", plans)
    run = schedules("run-now", "nightly")
    assert run.code == 0
    assert schedules("history", "nightly").out.splitlines()[1].startswith(run.out.strip())
    assert "waiting" in schedules("list").out
    assert "last_run:" in schedules("show", "nightly").out

    again = schedules("run-now", "nightly")
    assert again.code == 1
    assert "is under way" in again.err


def test_a_schedule_that_is_not_there_is_said_to_be_so(schedules):
    for command in ("show", "pause", "resume", "run-now", "history", "delete"):
        ended = schedules(command, "nothing")
        assert (ended.code, ended.err) == (
            1,
            "nightshift: No such Schedule object: nothing; `nightshift schedules list` shows those there "
            "are\n",
        )
