"""The scheduler submits jobs by the same rules as the API, without it."""

from dataclasses import replace
from typing import Any

import pytest

from nightshift.cli.bulk.requests_of_rows import location
from nightshift.errors import InvalidRequest, TooManyRequests, UnknownModel
from nightshift.jobs import Face, Job, NewJob, Webhook
from nightshift.jobs.json_text import fingerprint
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.submission import Submitter, new_job
from nightshift.process.settings import SubmissionSettings
from nightshift.tenants.vault import Vault
from tests.helpers.fakes import a_spec
from tests.integration.scheduler.scheduling import Place, a_line, jsonl

TENANT = "default"
VAULT = Vault("a key")
SCHEMES = ("s3a", "http", "S3", "gs")  # there are none
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


def test_a_window_in_which_nothing_might_be_saved_is_refused(place: Place) -> None:
    wanted = request(place, window="01:00-01:01 UTC")
    with pytest.raises(
        InvalidRequest, match=r"Invalid 'window': .* lasts 60 s, .* saved every 90 s"
    ) as refused:
        submitter(place, segment_interval_s=90).check(wanted, PriorityClass.STANDARD)
    assert refused.value.param == "window"


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": "file:///etc/passwd"}, "input"),
        ({"output": "file:///elsewhere/"}, "output"),
        ({"webhook": Webhook("https://127.0.0.1/hook", ())}, "webhook.url"),
        ({"template": {"model": 7}}, "template.model"),
        # Places that cannot be written, or where the output would replace the input.
        ({"output": "{bucket}/a//b/"}, "output"),
        ({"output": "{bucket}/" + "a/" * 450 + "b" * 50}, "output"),
        ({"input": "{bucket}/a//in.jsonl"}, "input"),
        ({"input": "{bucket}/out/part-00000.jsonl"}, "output"),
        ({"input": "{bucket}/out/part-00017.parquet", "output": "{bucket}/out"}, "output"),
        ({"input": "{bucket}/out/_manifest.json"}, "output"),
        *(({"input": location(f"{scheme}://bucket/a.csv", must_exist=True)}, "input") for scheme in SCHEMES),
    ],
)
def test_a_job_that_may_not_ask_for_this_is_refused_by_its_field(
    place: Place, wrong: dict[str, Any], param: str
) -> None:
    bucket = place.bucket.as_uri()
    wishes = {
        name: value.format(bucket=bucket) if isinstance(value, str) else value
        for name, value in wrong.items()
    }
    with pytest.raises(InvalidRequest) as refused:
        submitter(place).check(request(place, **wishes), PriorityClass.INTERACTIVE)

    assert refused.value.param == param
    if str(wrong.get("input", "")).endswith("://bucket/a.csv"):
        assert "use s3://bucket/key, file:///path or hf://datasets/org/name/path" in refused.value.message


@pytest.mark.parametrize("name", ["*.jsonl", "in/"])
def test_the_input_of_a_batch_is_one_object(place: Place, name: str) -> None:
    wanted = request(place, input=place.uri(name))

    with pytest.raises(InvalidRequest, match="POST /v1/jobs takes patterns and folders") as refused:
        submitter(place).check(replace(wanted, face=Face.OPENAI), PriorityClass.INTERACTIVE)

    assert refused.value.param == "input_file_id"


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
