"""The scheduler submits jobs by the same rules as the API, without it."""

from dataclasses import replace

import pytest

from nightshift.cli.bulk.requests_of_rows import location
from nightshift.errors import InvalidRequest, TooManyRequests, UnknownModel
from nightshift.jobs import Face, Job, JobState, NewJob, Webhook
from nightshift.jobs.json_text import fingerprint
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.submission import Submitter, new_job
from nightshift.process.settings import SubmissionSettings
from nightshift.tenants.vault import Vault
from tests.helpers.fakes import MODEL, FakeClock, a_spec
from tests.integration.scheduler.scheduling import IDLE_S, Place, a_line, jsonl

TENANT = "default"
VAULT = Vault("a key")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def place(place: Place) -> Place:
    (place.bucket / "in.jsonl").write_bytes(jsonl(a_line(f"r{number}") for number in range(10)))
    return place


def submitter(place: Place, **settings: int) -> Submitter:
    limits = SubmissionSettings().model_copy(update=settings)
    return Submitter(place.locations, VAULT, CachedCatalogue([]), limits)


def request(place: Place, **spec: object) -> NewJob:
    wishes = a_spec(**{"input": place.uri("in.jsonl"), "output": place.uri("out/"), **spec})
    return new_job(TENANT, Face.NATIVE, wishes, fingerprint=fingerprint("test", wishes.to_json()))


def submit(place: Place, wanted: NewJob, *, webhook_secret: str | None = None, **settings: int) -> Job:
    submits = submitter(place, **settings)
    new = submits.check(wanted, PriorityClass.INTERACTIVE, webhook_secret=webhook_secret)
    with place.store.transaction() as tx:
        return submits.submit_bulk(tx, new, tx.now()).job


def test_a_bulk_job_submitted_without_the_api_is_planned_run_and_assembled(
    place: Place, clock: FakeClock
) -> None:
    job = submit(place, request(place))

    planning = place.planning()
    planning.run_once(clock.now)
    assert planning.wait_until_idle(IDLE_S)
    assert place.work_off() == len(place.shards(job)) > 1
    assembly = place.assembly()
    place.write_parts(clock.now)
    assembly.run_once(clock.now)
    assert assembly.wait_until_idle(IDLE_S)

    ended = place.job(job)
    assert (ended.state, ended.model, ended.counts.succeeded) == (JobState.SUCCEEDED, MODEL, 10)
    assert (place.bucket / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": "file:///etc/passwd"}, "input"),
        ({"output": "file:///elsewhere/"}, "output"),
        ({"webhook": Webhook("https://127.0.0.1/hook", ())}, "webhook.url"),
        ({"template": {"model": 7}}, "template.model"),
    ],
)
def test_a_job_that_may_not_ask_for_this_is_refused_by_its_field(
    place: Place, wrong: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        submitter(place).check(request(place, **wrong), PriorityClass.INTERACTIVE)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("source", "output", "param"),
    [
        ("in.jsonl", "a//b/", "output"),
        ("in.jsonl", "a/" * 450 + "b" * 50, "output"),
        ("a//in.jsonl", "out/", "input"),
        ("out/part-00000.jsonl", "out/", "output"),
        ("out/part-00017.parquet", "out", "output"),
        ("out/_manifest.json", "out/", "output"),
    ],
)
def test_a_place_that_cannot_be_written_or_would_replace_the_input_is_refused(
    place: Place, source: str, output: str, param: str
) -> None:
    wanted = request(place, input=place.uri(source), output=place.uri(output))

    with pytest.raises(InvalidRequest) as refused:
        submitter(place).check(wanted, PriorityClass.INTERACTIVE)

    assert refused.value.param == param


@pytest.mark.parametrize("name", ["*.jsonl", "in/"])
def test_the_input_of_a_batch_is_one_object(place: Place, name: str) -> None:
    wanted = request(place, input=place.uri(name))

    with pytest.raises(InvalidRequest, match="POST /v1/jobs takes patterns and folders") as refused:
        submitter(place).check(replace(wanted, face=Face.OPENAI), PriorityClass.INTERACTIVE)

    assert refused.value.param == "input_file_id"


@pytest.mark.parametrize("scheme", ["s3a", "http", "S3", "gs"])
def test_an_input_of_another_scheme_is_told_which_there_are(place: Place, scheme: str) -> None:
    wanted = request(place, input=location(f"{scheme}://bucket/a.csv", must_exist=True))

    with pytest.raises(InvalidRequest, match="use s3://bucket/key or file:///path") as refused:
        submitter(place).check(wanted, PriorityClass.INTERACTIVE)

    assert refused.value.param == "input"


def test_an_input_beside_the_output_of_its_own_job_is_accepted(place: Place) -> None:
    wanted = request(place, input=place.uri("in.jsonl"), output=place.uri(""))

    assert submitter(place).check(wanted, PriorityClass.INTERACTIVE).spec.output == wanted.spec.output


def test_a_webhook_secret_is_checked_and_stored_encrypted(place: Place) -> None:
    submits, new = submitter(place), request(place)
    checked = submits.check(new, PriorityClass.INTERACTIVE, webhook_secret=SECRET)
    with pytest.raises(InvalidRequest) as refused:
        submits.check(new, PriorityClass.INTERACTIVE, webhook_secret="whsec_short")

    assert checked.webhook_secret is not None
    assert VAULT.decrypt(checked.webhook_secret) == SECRET
    assert refused.value.param == "webhook.secret"


def test_a_job_for_an_unknown_model_or_above_a_limit_is_refused_and_not_recorded(place: Place) -> None:
    with pytest.raises(UnknownModel):
        submit(place, request(place, template={"model": "unheard-of"}))
    with pytest.raises(TooManyRequests):
        submit(place, request(place), bulk_jobs_max=0)

    with place.store.snapshot() as tx:
        assert tx.jobs.list(TENANT, limit=1) == []
