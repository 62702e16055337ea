"""The harness itself: an undisturbed service passes the oracle, and a disturbed output does not."""

import hashlib
import json

import pytest

from nightshift.jobs import Face
from nightshift.jobs.part import part_name
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import OracleFailure
from tests.faults.chaos.workload import some_rows, submit_bulk, submit_online
from tests.faults.kit.service import Parts


@pytest.mark.parametrize(
    "parts",
    [
        Parts(workers=3, schedulers=2),
        Parts(database="postgresql", objects="moto", workers=3, schedulers=2),
    ],
    ids=str,
)
def test_an_undisturbed_service_passes_and_a_changed_output_does_not(service_of, parts):
    service = service_of(parts)
    rows = some_rows(60)
    jobs = [
        submit_bulk(service, rows),
        submit_bulk(service, some_rows(30, seed=1), face=Face.OPENAI),
        *(submit_online(service, row) for row in some_rows(5, seed=2)),
    ]

    verdict = oracle.judge(service, jobs)

    assert (verdict.jobs, verdict.rows, verdict.attempts_most, verdict.repeated_webhooks) == (7, 95, 1, 0)
    assert verdict.shards >= 10
    for reason, change in CHANGES.items():
        original = spoil(service, jobs[0], change)
        with pytest.raises(OracleFailure, match=reason):
            oracle.check(service, jobs)
        restore(service, original)
    assert oracle.check(service, jobs) == verdict


# What the oracle is to say, and what was done to the lines of a part file.
CHANGES = {
    r"missing \['row-\d+'\], doubled \[\]": lambda lines: lines[1:],
    r"missing \[\], doubled \['row-\d+'\]": lambda lines: [*lines, lines[0]],
    "in disorder": lambda lines: lines[::-1],
    "is not b'": lambda lines: [lines[0].replace(b'"length"', b'"stop"'), *lines[1:]],
}


def spoil(service, job, change):
    """Changes the first part of an output, with a manifest that says the same. Returns what was there."""
    names = (job.output + "_manifest.json", job.output + part_name(0, job.id, "jsonl"))
    original = {name: service.read_file(name) for name in names}
    manifest = json.loads(original[names[0]])
    data = b"".join(change(original[names[1]].splitlines(keepends=True)))
    manifest["parts"][0] |= {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    restore(service, {names[0]: json.dumps(manifest).encode(), names[1]: data})
    return original


def restore(service, files):
    for name, data in files.items():
        service.put_file(name, data)
