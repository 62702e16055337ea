"""Inputs whose objects have odd names: every row runs, or the job fails by the name."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.bulk.rows.previews import Previewer, Problem
from nightshift.errors import CredentialsRefused, StorageError, StorageUnavailable
from nightshift.jobs import InputError, Job, JobState
from nightshift.lifecycle.problems import shown_problem
from nightshift.objectstore import DirectoryStore, ObjectUri
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.tenants.keys import DEFAULT_TENANT
from scheduler.output import manifests
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration.scheduler.assembly.conftest import a_native_job, assembled, planned
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.scheduling import LINE_BYTES_MAX, TEMPLATE, Place, jsonl, lines_of
from tests.integration.servers import S3Server

ODD_KEYS = ["in/b.jsonl", "in//a.jsonl", "in/sub//c", "in/folder/", "in/50%2F #?+*.jsonl", "in/\u00e9\x01"]


@pytest.fixture
def store(sqlite_database: Database, clock: FakeClock) -> Store:
    """One database is enough: the store that matters here is the other one."""
    return Store(sqlite_database, clock=clock)


def inputs_of(manifest: bytes) -> list[str]:
    return [read["uri"] for read in json.loads(manifest)["inputs"]["objects"]]


def test_rows_of_every_key_are_run_retried_and_named(
    store: Store, tmp_path: Path, moto_server: S3Server
) -> None:
    bucket = moto_server.new_bucket()
    place = Place.at(store, tmp_path, (bucket,))
    place.serve_model()
    with moto_server.in_environment():
        remote = place.locations.open(ObjectUri.parse(f"s3://{bucket}/"), DEFAULT_TENANT)
    for key in ODD_KEYS:
        moto_server.client.put_object(Bucket=bucket, Key=key, Body=jsonl([{"text": key}, {"text": "bad"}]))
    location = {"input": f"s3://{bucket}/in/", "output": f"s3://{bucket}/out/"}
    job = planned(place, place.native(**location, template=TEMPLATE, model=MODEL))
    place.work_off()
    job = assembled(place, job)

    assert (job.state, job.counts.succeeded, job.counts.failed) == (
        JobState.SUCCEEDED,
        len(ODD_KEYS),
        len(ODD_KEYS),
    )
    manifest = remote.read("out/_manifest.json")
    assert inputs_of(manifest) == [f"s3://{bucket}/{key}" for key in sorted(ODD_KEYS)]
    (part,) = json.loads(manifest)["parts"]
    answers = [line["response"]["body"] for line in lines_of(remote.read(f"out/{part['name']}"))]
    assert [body["choices"][0]["message"]["content"] for body in answers] == sorted(ODD_KEYS)

    again = planned(place, retry_of(place, job))
    place.work_off(lambda request: (200, {}))
    assert assembled(place, again).counts.succeeded == len(ODD_KEYS)
    place.locations.close()


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_folder_that_a_job_wrote_is_an_input_with_its_rows_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(manifests, "INPUTS_MAX", 0)
    place = Place.at(store, tmp_path)
    place.serve_model()
    first = a_native_job(place, ["a", "b", "bad"], format=format)
    place.work_off()
    assembled(place, first)

    template = {"model": MODEL, "messages": [{"role": "user", "content": "{{custom_id}}"}]}
    wishes = {"template": template, "output": place.uri("next/")}
    second = planned(place, place.native(name="out/", model=MODEL, **wishes))
    place.work_off()
    assert assembled(place, second).counts.succeeded == 3

    (listed,) = (place.bucket / "next").glob("_inputs-*")
    read = [json.loads(line)["uri"] for line in listed.read_text().splitlines()]
    assert read == [place.uri(f"out/{name}") for name in (*place.part_names("errors"), *place.part_names())]


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "pipe.jsonl": os.mkfifo,
    "link.jsonl": lambda path: path.symlink_to("/etc/hostname"),
    "folder": lambda path: path.symlink_to("/etc"),
    os.fsdecode(b"caf\xe9.jsonl"): lambda path: path.write_bytes(jsonl([{"text": "a"}])),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_job_fails_by_the_name_of_what_cannot_be_read_and_a_dry_run_says_the_same(
    store: Store, tmp_path: Path, name: str
) -> None:
    place = Place.at(store, tmp_path)
    place.serve_model()
    (place.bucket / "in").mkdir()
    (place.bucket / "in" / "a.jsonl").write_bytes(jsonl([{"text": "a"}]))
    UNREADABLE[name](place.bucket / "in" / name)

    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    failed = place.plan(job)

    (error,) = failed.errors
    assert (failed.state, error.code, error.param) == (JobState.FAILED, "unreadable_input", "input")
    named = str(ObjectUri.parse(place.uri("in/")).with_key(f"{place.bucket}/in/{name}"[1:]))
    assert error.message.startswith(named)
    assert place.shards(failed) == []
    assert previewed(place, job) == Problem(code=error.code, message=error.message, param=error.param)


@pytest.mark.parametrize("error", [CredentialsRefused("s3://in/a: ExpiredToken"), StorageUnavailable("503")])
@pytest.mark.parametrize("method", ["list", "stream"])
def test_a_dry_run_says_that_the_job_would_wait_and_the_problem_that_it_would_show(
    store: Store,
    clock: FakeClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: StorageError,
) -> None:
    def fail(*_: object, **__: object) -> Iterator[Any]:
        raise error

    place = Place.at(store, tmp_path)
    place.serve_model()
    (place.bucket / "in").mkdir()
    (place.bucket / "in" / "a.jsonl").write_bytes(jsonl([{"text": "a"}]))
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    monkeypatch.setattr(DirectoryStore, method, fail)

    problem = previewed(place, job)
    waiting = place.plan(job)

    assert not waiting.state.is_terminal
    with store.snapshot() as tx:
        shown = shown_problem(tx, waiting, clock.now)
    assert isinstance(problem, Problem)
    assert shown is not None
    assert shown.fault.error == InputError(problem.code, problem.message, param=problem.param)
    assert not problem.is_permanent


def previewed(place: Place, job: Job) -> object:
    previewer = Previewer(sources=place.sources, locations=place.locations, line_bytes_max=LINE_BYTES_MAX)
    return next(iter(previewer.preview(job.spec, DEFAULT_TENANT, None)))
