"""Where a job's output goes, and what its files are called.

part-00000-4k3j2h1g.parquet    good rows of the shards from 0 on; the rest is the run's own name
errors-00000-4k3j2h1g.parquet  the others
manifest.json  _SUCCESS
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from nightshift.errors import StorageError
from nightshift.jobs import Job, JobSpec
from nightshift.objectstore import Locations, ObjectStore, ObjectUri

MANIFEST_NAME: Final = "manifest.json"
SUCCESS_NAME: Final = "_SUCCESS"  # written last
RUN_CHARS: Final = 8

# Before runs had names of their own, a part was called `part-00000.jsonl`.
_FILE: Final = re.compile(r"(part|errors)-[0-9]{5,}(-(?P<run>[a-z0-9]{8}))?\.(jsonl|parquet)")
_OF_A_RUN: Final = re.compile(r"(manifest|inputs)-(?P<run>[a-z0-9]{8})\.jsonl?")


@dataclass(frozen=True)
class Destination:
    """A store, and a prefix in it that is empty or ends with a slash."""

    store: ObjectStore
    prefix: str

    def key(self, name: str) -> str:
        return self.prefix + name


class OutputTrouble(Exception):
    """The output cannot be written to its destination."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(error.message)
        self.error = error


@contextmanager
def at_destination() -> Iterator[None]:
    """StorageErrors in this block are the destination's. Raises OutputTrouble."""
    try:
        yield
    except StorageError as error:
        raise OutputTrouble(error) from error


def destination_of(job: Job, objects: ObjectStore, locations: Locations) -> Destination:
    """Raises InvalidRequest for a place that is no longer allowed."""
    if job.spec.output is None:
        return Destination(objects, f"results/{job.tenant_id}/{job.id}/")
    return named_destination(job.spec.output, job.tenant_id, locations)


def named_destination(output: str, tenant_id: str, locations: Locations) -> Destination:
    """Raises InvalidRequest for a place that is no longer allowed."""
    location = ObjectUri.parse(output)
    prefix = location.key if location.is_prefix else f"{location.key}/"
    return Destination(locations.open(location, tenant_id), prefix)


def place_of(spec: JobSpec) -> str | None:
    """A digest of the folder that a job writes to: the same for each way to spell it, and for links to it.
    None: it names none.
    """
    if spec.output is None:
        return None
    location = without_links(ObjectUri.parse(spec.output))
    folder = f"{location.scheme}://{location.bucket}/{location.key.rstrip('/')}/"
    return hashlib.sha256(folder.encode()).hexdigest()


def without_links(location: ObjectUri) -> ObjectUri:
    """The location with symbolic links followed, up to a pattern's first wildcard."""
    if location.scheme != "file":
        return location
    fixed = location.folder if location.is_pattern else location.key
    real = os.path.realpath(f"/{fixed}")[1:]
    slash = "/" if fixed.endswith("/") and real else ""
    return location.with_key(real + slash + location.key[len(fixed) :])


def run_of(job_id: str) -> str:
    """A run's name in those of its files."""
    return job_id.rpartition("_")[2][:RUN_CHARS]


def part_name(first_shard: int, job_id: str, format: str) -> str:
    return f"part-{first_shard:05d}-{run_of(job_id)}.{format}"


def errors_name(first_shard: int, job_id: str, format: str) -> str:
    return f"errors-{first_shard:05d}-{run_of(job_id)}.{format}"


def run_manifest_name(job_id: str) -> str:
    """Of a run whose folder still has the complete output of another."""
    return f"manifest-{run_of(job_id)}.json"


def inputs_name(job_id: str) -> str:
    """The list of a run's inputs, where the manifest has no room for it."""
    return f"inputs-{run_of(job_id)}.jsonl"


def is_output_name(name: str) -> bool:
    """Whether an output may have an object of this name."""
    is_fixed = name in (MANIFEST_NAME, SUCCESS_NAME)
    return is_fixed or _FILE.fullmatch(name) is not None or _OF_A_RUN.fullmatch(name) is not None


def run_in(name: str) -> str | None:
    """The run that a name of ours has. None: it has none."""
    found = _FILE.fullmatch(name) or _OF_A_RUN.fullmatch(name)
    return None if found is None else found["run"]


def is_of_another_run(name: str, job_id: str) -> bool:
    """Whether its name is one of another run's output."""
    found = _FILE.fullmatch(name) or _OF_A_RUN.fullmatch(name)
    return found is not None and found["run"] != run_of(job_id)
