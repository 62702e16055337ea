"""A native job from bucket to bucket, on real S3 servers."""

import json
from pathlib import Path

import pytest

from nightshift.jobs import JobState
from nightshift.objectstore import ObjectUri
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration.scheduler.scheduling import TEMPLATE, Place, jsonl, lines_of


@pytest.fixture
def store(sqlite_database: Database, clock: FakeClock) -> Store:
    """One database is enough: the store that matters here is the other one."""
    return Store(sqlite_database, clock=clock)


def test_rows_go_from_a_bucket_to_a_bucket(store: Store, tmp_path: Path, bucket: str) -> None:
    place = Place.at(store, tmp_path, (bucket,))
    place.serve_model()
    remote = place.locations.open(ObjectUri.parse(f"s3://{bucket}/"), DEFAULT_TENANT)
    for name in ("b", "a"):
        remote.put(f"in/{name}.jsonl", jsonl({"text": f"{name}{number}"} for number in range(20)))
    job = place.native(
        input=f"s3://{bucket}/in/", output=f"s3://{bucket}/out", template=TEMPLATE, model=MODEL
    )

    place.run(place.planning())
    place.work_off()
    place.write_parts()
    place.run(place.assembly())

    assert place.job(job).state is JobState.SUCCEEDED
    manifest = json.loads(remote.read("out/_manifest.json"))
    answers = [
        line["response"]["body"]["choices"][0]["message"]["content"]
        for part in manifest["parts"]
        for line in lines_of(remote.read(f"out/{part['name']}"))
    ]
    assert answers == [f"{name}{number}" for name in ("a", "b") for number in range(20)]
    assert remote.head("out/_SUCCESS") is not None
    place.locations.close()
