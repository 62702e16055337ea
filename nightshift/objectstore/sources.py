"""The sources of a job's rows: an uploaded file in our store, or an object at a user's location."""

from dataclasses import dataclass

from nightshift.jobs.files import file_key
from nightshift.objectstore import Locations, ObjectReader, ObjectStore, ObjectUri


@dataclass(frozen=True)
class Source:
    """An object with rows, and its store."""

    store: ObjectReader
    key: str


class Sources:
    """Opens the inputs of jobs."""

    def __init__(self, objects: ObjectStore, locations: Locations) -> None:
        """`objects`: the service's own store. `locations`: the places that jobs may name."""
        self._objects = objects
        self._locations = locations

    def open(self, uri: str, tenant_id: str) -> Source:
        """The tenant's file `file-…`, or a location. Raises LocationNotAllowed."""
        if is_file_id(uri):
            return Source(self._objects, file_key(tenant_id, uri))
        location = ObjectUri.parse(uri)
        return Source(self._locations.reader(location, tenant_id), location.key)


def is_file_id(uri: str) -> bool:
    """Whether an input names an uploaded file."""
    return uri.startswith("file-")
