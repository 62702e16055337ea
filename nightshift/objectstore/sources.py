"""Where the rows of a job are: an uploaded file in our own store, or an object at a user's location.

The scheduler (planning, assembly) and the workers (running) find a shard's input by this rule.
"""

from dataclasses import dataclass

from nightshift.jobs.files import file_key
from nightshift.objectstore import Locations, ObjectStore, ObjectUri


@dataclass(frozen=True)
class Source:
    """An object with rows in it, and the store that has it."""

    store: ObjectStore
    key: str


class Sources:
    """Opens what jobs name as their input."""

    def __init__(self, objects: ObjectStore, locations: Locations) -> None:
        """`objects` is the service's own store; `locations` are the places jobs may name."""
        self._objects = objects
        self._locations = locations

    def open(self, uri: str, tenant_id: str) -> Source:
        """`file-…` is a file of the tenant's, anything else a location. Raises LocationNotAllowed."""
        if is_file_id(uri):
            return Source(self._objects, file_key(tenant_id, uri))
        location = ObjectUri.parse(uri)
        return Source(self._locations.open(location), location.key)


def is_file_id(uri: str) -> bool:
    """Whether an input names an uploaded file rather than a location."""
    return uri.startswith("file-")
