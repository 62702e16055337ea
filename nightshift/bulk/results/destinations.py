"""The places that jobs' outputs go to."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nightshift.errors import StorageError
from nightshift.jobs import Job, JobSpec
from nightshift.objectstore import Locations, ObjectStore, ObjectUri


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
