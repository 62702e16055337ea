"""Which run a job reuses: the latest of its name, that of a date, or a job; of its own tenant only."""

from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from nightshift.errors import InvalidRequest
from nightshift.jobs import Counts, Face, Job, JobState, NewJob
from nightshift.jobs.files import JobPart
from nightshift.jobs.ids import new_id
from nightshift.jobs.options import BulkOptions
from nightshift.lifecycle import transitions
from nightshift.lifecycle.reuse import other_model, with_reused_job
from nightshift.store import Store
from tests.helpers.fakes import MODEL, a_new_job, a_spec

_seconds = count()


def a_run(
    date: str = "2026-11-22", *, model: str | None = MODEL, tenant: str = "acme", **spec: Any
) -> NewJob:
    wishes = a_spec(name="nightly", run_date=date, output=f"s3://bucket/{new_id('out')}/", **spec)
    return a_new_job(tenant_id=tenant, model=model, spec=wishes)


def ended(store: Store, new: NewJob, state: JobState | None = JobState.SUCCEEDED) -> Job:
    """None: it has not ended. Each was created a second after the one before."""
    with store.transaction() as tx:
        created_at = tx.now() + timedelta(seconds=next(_seconds))
        job = transitions.submit_bulk(tx, new, created_at).job
        if state is not None:
            transitions.plan(tx, job, new.model or MODEL, [], tx.now())
            tx.jobs.mark_finalizing(job.id, tx.now())
            transitions.finish(tx, tx.jobs.fetch(job.id), state, tx.now(), counts=Counts(0, 0, 0))
        return tx.jobs.fetch(job.id)


def reused(store: Store, new: NewJob) -> str | None:
    with store.snapshot() as tx:
        return with_reused_job(tx, new).spec.reused_job


def refused(store: Store, new: NewJob) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as error:
        reused(store, new)
    assert error.value.param == "reuse"
    return error.value.code, error.value.message


def test_latest_is_the_newest_run_of_the_name_that_succeeded(store: Store) -> None:
    tonight = a_run("2026-11-23", reuse="latest")
    assert reused(store, tonight) is None

    ended(store, a_run("2026-11-20"))
    latest = ended(store, a_run("2026-11-21"))
    ended(store, a_run("2026-11-22"), JobState.FAILED)
    ended(store, a_run("2026-11-22"), None)
    ended(store, replace(a_run(), spec=replace(a_run().spec, name="another")))
    ended(store, a_run(tenant="other"))
    assert reused(store, tonight) == latest.id


def test_latest_passes_over_runs_with_another_model_or_endpoint(store: Store) -> None:
    good = ended(store, a_run("2026-11-19"))
    ended(store, a_run("2026-11-20", model="another"))
    ended(store, a_run("2026-11-21", endpoint="/v1/embeddings"))
    assert reused(store, a_run("2026-11-23", reuse="latest")) == good.id


def test_a_date_is_that_of_a_run_of_the_name(store: Store) -> None:
    run = ended(store, a_run("2026-11-20"))
    ended(store, a_run("2026-11-21"))
    assert reused(store, a_run("2026-11-23", reuse="2026-11-20")) == run.id

    code, message = refused(store, a_run("2026-11-23", reuse="2026-11-19"))
    assert code == "reuse_not_found"
    assert "'nightly' has no run of 2026-11-19" in message


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_is_reused_by_its_id_however_it_ended(store: Store, state: JobState) -> None:
    job = ended(store, a_run(), state)
    assert reused(store, a_run("2026-11-23", reuse=job.id)) == job.id


def test_a_job_whose_results_stay_with_the_service_is_reused_and_a_batch_is_not(store: Store) -> None:
    kept = a_run()
    job = ended(store, replace(kept, spec=replace(kept.spec, output=None)))
    assert reused(store, a_run("2026-11-23", reuse=job.id)) == job.id

    batch = ended(store, replace(a_run(), face=Face.OPENAI))
    assert refused(store, a_run("2026-11-23", reuse=batch.id))[0] == "reuse_mismatch"


def test_another_tenants_job_is_not_there(store: Store) -> None:
    job = ended(store, a_run(tenant="other"))
    assert refused(store, a_run("2026-11-23", reuse=job.id))[0] == "reuse_not_found"


def test_what_cannot_be_reused_is_refused_with_the_reason(store: Store) -> None:
    running = ended(store, a_run(), None)
    assert refused(store, a_run("2026-11-23", reuse=running.id))[0] == "reuse_not_ended"

    other = ended(store, a_run(model="another"))
    code, message = refused(store, a_run("2026-11-23", reuse=other.id))
    assert code == "reuse_mismatch"
    assert "another" in message
    assert MODEL in message

    embedded = ended(store, a_run(endpoint="/v1/embeddings"))
    assert refused(store, a_run("2026-11-23", reuse=embedded.id))[0] == "reuse_mismatch"

    old = ended(store, a_run("2026-11-21"))
    with store.transaction() as tx:
        tx.deletions.mark([old.id], JobPart.RESULTS, tx.now())
    assert refused(store, a_run("2026-11-23", reuse=old.id))[0] == "reuse_not_found"
    assert reused(store, a_run("2026-11-23", reuse="latest")) is None


def test_latest_and_dates_need_a_name(store: Store) -> None:
    for wish in ("latest", "2026-11-20"):
        new = a_new_job(spec=a_spec(reuse=wish))
        assert "name" in refused(store, new)[1]


def test_a_model_that_only_the_rows_name_is_compared_when_they_are_read(store: Store) -> None:
    earlier = ended(store, a_run())
    job = ended(store, a_run("2026-11-23", model=None, reuse=earlier.id, reused_job=earlier.id), None)
    assert other_model(job, earlier, MODEL) is None
    assert other_model(job, earlier, "another").code == "reuse_mismatch"

    latest = replace(job, spec=replace(job.spec, options=BulkOptions(reuse="latest")))
    assert other_model(latest, earlier, "another") is None
