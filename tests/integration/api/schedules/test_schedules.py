"""/v1/schedules: plans are applied, shown, paused, run and deleted, by their tenant only."""

from typing import Any

import httpx
import pytest

from api.services.services import AppSettings
from nightshift.process.settings import ApiSettings, SubmissionSettings
from nightshift.store import Store
from tests.integration.api.conftest import HttpMaker

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def job(bulk: dict[str, Any]) -> dict[str, Any]:
    return bulk | {"output": f"{bulk['output']}{{{{date}}}}/"}


def put(http: httpx.Client, job: dict[str, Any], at: str = "nightly", **plan: Any) -> httpx.Response:
    fields = {"cron": "30 1 * * *", "job": job} | plan
    dry_run = "?dry_run=true" if fields.pop("dry_run", False) else ""
    return http.put(f"/v1/schedules/{at}{dry_run}", json=fields)


def applied(http: httpx.Client, job: dict[str, Any], at: str = "nightly", **plan: Any) -> dict[str, Any]:
    answer = put(http, job, at, **plan)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refusal(answer: httpx.Response) -> tuple[str, str, str]:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"], error["message"]


def test_a_plan_is_applied_once_and_its_changes_are_versions(http, job):
    first = applied(http, job, time_zone="Europe/Berlin")
    again = applied(http, job, time_zone="Europe/Berlin", overlap="skip")
    changed = applied(http, job, cron="0 2 * * *")

    assert [answer["change"] for answer in (first, again, changed)] == ["created", "unchanged", "updated"]
    assert [answer["version"] for answer in (first, again, changed)] == [1, 1, 2]
    versions = http.get("/v1/schedules/nightly/versions").json()["data"]
    assert [one["plan"]["cron"] for one in versions] == ["0 2 * * *", "30 1 * * *"]
    assert http.get("/v1/schedules/nightly").json() == {
        key: value for key, value in changed.items() if key != "change"
    }


def test_a_schedule_shows_its_plan_and_the_next_three_runs(http, job):
    shown = applied(http, job, jitter="5m", description="Summaries")

    assert (shown["object"], shown["name"], shown["job"]) == ("schedule", "nightly", job)
    assert (shown["overlap"], shown["catch_up"], shown["catch_up_limit"]) == ("skip", "last", 7)
    assert (shown["jitter"], shown["time_zone"], shown["description"]) == ("5m", "UTC", "Summaries")
    first, second, third = shown["next_runs"]
    assert (second - first, third - second) == (86_400, 86_400)
    assert (shown["last_run"], shown["problem"], shown["paused_at"]) == (None, None, None)


def test_a_window_is_in_the_plans_zone_and_its_jobs_have_it(http, job, store: Store):
    shown = applied(http, job, window="01:00-06:00", time_zone="Europe/Berlin")

    assert shown["window"] == "01:00-06:00"
    with store.snapshot() as tx:
        [version] = tx.schedules.versions(shown["id"], limit=1)
    assert version.spec["window"] == "01:00-06:00 Europe/Berlin"


def test_a_dry_run_says_what_would_change_and_changes_nothing(http, job):
    assert applied(http, job, dry_run=True)["change"] == "created"
    assert http.get("/v1/schedules/nightly").status_code == 404

    applied(http, job)
    assert applied(http, job, dry_run=True, cron="0 2 * * *")["change"] == "updated"
    assert http.get("/v1/schedules/nightly").json()["cron"] == "30 1 * * *"


@pytest.mark.parametrize(
    ("wrong", "param", "code"),
    [
        ({"cron": "0 30 1 * * *"}, "cron", "invalid_cron"),
        ({"cron": "0 0 31 2 *"}, "cron", "invalid_cron"),
        ({"cron": "61 * * * *"}, "cron", "invalid_cron"),
        ({"cron": None}, "cron", "invalid_value"),
        ({"after": "other"}, "cron", "invalid_value"),
        ({"cron": None, "after": "nightly"}, "after", "circle"),
        ({"time_zone": "Europe/Berln"}, "time_zone", "unknown_time_zone"),
        ({"time_zone": "../../etc/passwd"}, "time_zone", "unknown_time_zone"),
        ({"jitter": "5"}, "jitter", "invalid_value"),
        ({"jitter": 5}, "jitter", "invalid_value"),
        ({"jitter": "25h"}, "jitter", "invalid_value"),
        ({"catch_up_limit": 101}, "catch_up_limit", None),
        ({"catch_up": "all"}, "overlap", "invalid_value"),
        ({"overlap": "both"}, "overlap", None),
        ({"name": "another"}, "name", "invalid_value"),
        ({"cron": "0 1,13 * * *"}, "job.output", "would_overwrite"),
        ({"croon": "* * * * *"}, "croon", "unknown_parameter"),
        ({"window": "01:00"}, "window", "invalid_value"),
        ({"window": "01:00-06:00 Europe/Berlin"}, "window", "invalid_value"),
        ({"window": "01:00-01:00"}, "window", "invalid_value"),
        ({"webhook": {"url": "https://127.0.0.1/hook"}}, "webhook.url", "url_not_allowed"),
    ],
)
def test_a_wrong_plan_is_refused_by_its_field(http, job, wrong, param, code):
    named, said, message = refusal(put(http, job, **wrong))

    assert named == param
    assert code is None or said == code
    assert message


@pytest.mark.parametrize(
    ("wrong", "param", "code"),
    [
        ({"output": "{bucket}/out/"}, "job.output", "would_overwrite"),
        ({"output": "{bucket}/{{{{day}}}}/"}, "job.output", "unknown_variable"),
        ({"output": "{bucket}/{{{{previous_output}}}}/"}, "job.output", "unknown_variable"),
        ({"input": "{bucket}/{{{{yesterday}}}}.jsonl"}, "job.input", "unknown_variable"),
        ({"metadata": {"night": "{{run}}"}}, "job.metadata.night", "unknown_variable"),
        ({"input": "file:///etc/passwd"}, "job.input", "location_not_allowed"),
        ({"name": "nightly"}, "job.name", "unknown_parameter"),
        ({"date": "2026-11-30"}, "job.date", "unknown_parameter"),
        ({"webhook": {"url": "https://example.com"}}, "job.webhook", "unknown_parameter"),
        ({"body": {}}, "job.body", "unknown_parameter"),
        ({"completion_window": "soon"}, "job.completion_window", "invalid_value"),
        ({"endpoint": "/v1/nothing"}, "job.endpoint", "invalid_value"),
        ({"template": {"model": 7}}, "job.template.model", "invalid_type"),
    ],
)
def test_a_wrong_job_of_a_plan_is_refused_by_its_field(http, job, wrong, param, code):
    bucket = job["output"].removesuffix("/out/{{date}}/")
    wrong = {
        name: value.format(bucket=bucket) if isinstance(value, str) else value
        for name, value in wrong.items()
    }
    named, said, _ = refusal(put(http, job | wrong))

    assert (named, said) == (param, code)


@pytest.mark.parametrize("fields", [{}, {"name": None}])
def test_a_name_in_the_path_is_held_to_the_form_of_names(http, job, fields):
    assert refusal(put(http, job, "x" * 101, **fields))[:2] == ("name", "invalid_value")


@pytest.mark.parametrize("window", ["01:00-06:00 Europe/Berlin", "8h"])
def test_a_window_of_a_plan_has_no_zone_of_its_own(http, job, window):
    _, _, message = refusal(put(http, job, window=window))

    assert "01:00-06:00; the plan's 'time_zone' is its zone" in message


def test_a_field_that_there_is_not_is_named_with_the_one_that_may_be_meant(http, job):
    for refused, wrong, meant in (
        (put(http, job, corn="0 1 * * *"), "corn", "'cron'"),
        (put(http, job | {"imput": "s3://x/"}), "imput", "'input'"),
    ):
        assert refusal(refused)[2] == f"Unknown parameter: '{wrong}'. Did you mean {meant}?"
    assert "5m" in refusal(put(http, job, jitter=5))[2]


def test_a_job_of_its_own_has_no_schedules_name(http, job, bulk):
    own = bulk | {"name": "nightly", "date": "2026-11-30"}
    first = http.post("/v1/jobs", json=own)
    applied(http, job)

    refused = http.post("/v1/jobs", json=own | {"date": "2026-12-01"})
    dry = http.post("/v1/jobs?dry_run=true", json=own | {"date": "2026-12-01"}).json()
    again = http.post("/v1/jobs", json=own)

    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (409, "name", "name_of_schedule")
    assert (dry["would_be_accepted"], dry["refusal"]["code"]) == (False, "name_of_schedule")
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])


def test_a_job_that_would_be_over_before_its_window_opens_is_refused(http, job):
    wrong = {"cron": "0 12 * * *", "window": "20:00-23:00"}
    named, _, message = refusal(put(http, job | {"completion_window": "8h"}, **wrong))

    assert named == "job.completion_window"
    assert "20:00:00Z" in message
    assert put(http, job | {"completion_window": "9h"}, **wrong).status_code == 200


def test_a_model_that_is_not_served_is_named(http, job):
    refused = put(http, job | {"template": {"model": "none"}})

    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (404, "job.model", "model_not_found")


def test_an_output_that_is_the_same_every_night_needs_a_word(http, job):
    same = job | {"output": job["output"].replace("{{date}}/", "")}

    assert put(http, same).status_code == 400
    assert put(http, same, overwrite=True).status_code == 200


def test_plans_that_follow_one_another_in_a_circle_are_refused(http, job):
    applied(http, job, "first")
    applied(http, job, "second", cron=None, after="first")
    applied(http, job, "third", cron=None, after="second")

    param, code, message = refusal(put(http, job, "first", cron=None, after="third"))

    assert (param, code) == ("after", "circle")
    assert "first after third after second after first" in message


def test_a_plan_that_follows_one_there_is_not_says_so(http, job):
    lonely = applied(http, job, "second", cron=None, after="first")
    applied(http, job, "first")

    assert lonely["problem"]["code"] == "after_missing"
    assert http.get("/v1/schedules/second").json()["problem"] is None


def test_a_schedule_is_paused_and_resumed_and_a_repeat_changes_nothing(http, job):
    applied(http, job)
    pauses = [http.post("/v1/schedules/nightly/pause").json() for _ in range(2)]
    resumes = [http.post("/v1/schedules/nightly/resume").json() for _ in range(2)]

    assert pauses[0] == pauses[1]
    assert pauses[0]["paused_at"] is not None
    assert pauses[0]["next_runs"] == []
    assert resumes[0] == resumes[1]
    assert resumes[0]["paused_at"] is None
    assert len(resumes[0]["next_runs"]) == 3


def test_a_paused_schedule_stays_paused_when_its_plan_changes(http, job):
    applied(http, job)
    http.post("/v1/schedules/nightly/pause")

    changed = applied(http, job, cron="0 2 * * *")

    assert changed["paused_at"] is not None
    assert changed["next_runs"] == []


def test_run_now_records_a_run_that_is_in_the_history(http, job):
    applied(http, job)
    run = http.post("/v1/schedules/nightly/run")
    second = http.post("/v1/schedules/nightly/run")

    assert (run.status_code, run.json()["state"], run.json()["object"]) == (202, "waiting", "schedule.run")
    assert second.status_code == 409, "its plan says skip"
    assert http.get("/v1/schedules/nightly/runs").json()["data"] == [run.json()]
    assert http.get("/v1/schedules/nightly").json()["last_run"] == run.json()


def test_a_deleted_schedule_is_gone_with_its_runs(http, job):
    applied(http, job)
    http.post("/v1/schedules/nightly/run")

    deleted = http.delete("/v1/schedules/nightly").json()

    assert (deleted["object"], deleted["name"], deleted["deleted"]) == ("schedule.deleted", "nightly", True)
    assert http.get("/v1/schedules/nightly/runs").status_code == 404
    assert applied(http, job)["version"] == 1
    assert http.get("/v1/schedules/nightly/runs").json()["data"] == []


def test_lists_of_schedules_and_versions_go_on_after_the_last(http, job):
    for name in ("a", "b", "c"):
        applied(http, job, name)
    for minute in (1, 2):
        applied(http, job, "a", cron=f"{minute} 1 * * *")

    page = http.get("/v1/schedules?limit=2").json()
    rest = http.get(f"/v1/schedules?limit=2&after={page['last_id']}").json()
    versions = http.get("/v1/schedules/a/versions?limit=2").json()
    oldest = http.get(f"/v1/schedules/a/versions?after={versions['last_id']}").json()

    assert sorted(one["name"] for one in (*page["data"], *rest["data"])) == ["a", "b", "c"]
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert [one["version"] for one in (*versions["data"], *oldest["data"])] == [3, 2, 1]


def test_a_secret_of_a_webhook_is_kept_encrypted_and_never_shown(http, job, store: Store, settings):
    hook = {"url": "https://example.com/hook", "events": ["job.failed"], "secret": SECRET}
    shown = applied(http, job, webhook=hook)
    again = applied(http, job, webhook=hook)
    other = applied(http, job, webhook=hook | {"secret": SECRET[:-4] + "AAAA"})

    assert shown["webhook"] == {"url": "https://example.com/hook", "events": ["job.failed"]}
    assert SECRET not in str(http.get("/v1/schedules/nightly/versions").json())
    assert (again["change"], other["change"]) == ("unchanged", "updated")
    with store.snapshot() as tx:
        [version] = tx.schedules.versions(shown["id"], limit=1, before=2)
    assert version.webhook_secret is not None
    assert SECRET.encode() not in version.webhook_secret


ROUTES = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/run"),
    ("GET", "/runs"),
    ("GET", "/versions"),
]


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_another_tenants_schedule_is_not_found(
    http_of: HttpMaker, job: dict[str, Any], method: str, route: str
) -> None:
    owner, stranger = http_of(), http_of("other")
    own = applied(owner, job)

    assert stranger.request(method, f"/v1/schedules/nightly{route}").status_code == 404
    assert stranger.get("/v1/schedules").json()["data"] == []
    assert stranger.get(f"/v1/schedules?after={own['id']}").status_code == 404
    assert owner.get("/v1/schedules/nightly").json()["version"] == 1


class TestLimits:
    @pytest.fixture
    def settings(self, settings: AppSettings) -> AppSettings:
        return AppSettings(
            settings.data,
            settings.queue,
            settings.locations,
            ApiSettings(),
            SubmissionSettings(schedules_max=2),
        )

    def test_a_tenant_has_so_many_schedules_and_no_more(self, http, job):
        for name in ("a", "b"):
            applied(http, job, name)

        refused = put(http, job, "c")

        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "too_many_schedules"
        assert applied(http, job, "a", cron="0 2 * * *")["change"] == "updated"
