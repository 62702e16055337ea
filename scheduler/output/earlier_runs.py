"""Files that earlier runs left in the folder of an output.

A file is theirs if a manifest of ours lists it, or if its name is that of a job that has ended: never by its
form alone.
"""

import json
import re
from typing import Final

from nightshift.bulk.results.destinations import Destination, at_destination, named_destination
from nightshift.errors import InvalidRequest, ObjectNotFound
from nightshift.jobs import Job, JsonObject
from nightshift.jobs.part import (
    MANIFEST_NAME,
    PREFIXES,
    RUN_MANIFEST_PREFIX,
    SUCCESS_NAME,
    is_of_another_run,
    run_in,
)
from nightshift.objectstore import Locations, ObjectTooLarge, ObjectUri
from nightshift.store import Store

MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
HEAD_BYTES: Final = 256
ENTRIES_MAX: Final = 150_000  # objects and arrays of a manifest: a file's owner may have put anything there
VALUES_MAX: Final = 2_000_000

_HEAD: Final = re.compile(rb'\{\s*"job_id": "(job_[a-z0-9]{1,64})"')


def owner_of(destination: Destination) -> str | None:
    """The id of the job whose manifest lies there. None: there is no manifest.

    Raises OutputTrouble, and InvalidRequest for a manifest or a `_SUCCESS` that is not ours.
    """
    head = _head_of(MANIFEST_NAME, destination)
    if head is not None:
        owner = _HEAD.match(head)
        if owner is None:
            raise _not_ours(MANIFEST_NAME)
        return owner[1].decode()
    with at_destination():
        if destination.store.head(destination.key(SUCCESS_NAME)) is None:
            return None
    raise _not_ours(SUCCESS_NAME)


def check_output(output: str, tenant_id: str, locations: Locations) -> None:
    """Looks at a place before any row is run for it. Changes nothing there.

    Raises OutputTrouble, and InvalidRequest for a file, or a folder of another's output.
    """
    destination = named_destination(output, tenant_id, locations)
    if ObjectUri.parse(output).scheme == "file":  # in a bucket, an object beside the folder may have its name
        with at_destination():
            if destination.store.head(destination.prefix.rstrip("/")) is not None:
                message = "The output is a file. Name a folder, or take the file away."
                raise InvalidRequest(message, param="output", code="output_not_a_folder")
    owner_of(destination)


def listed_by_others(job: Job, destination: Destination) -> set[str]:
    """Names that the manifests of other runs have, and their own. Raises OutputTrouble."""
    store, names = destination.store, set[str]()
    with at_destination():
        own = [info.key for info in store.list(destination.key(RUN_MANIFEST_PREFIX))]
        for key in (destination.key(MANIFEST_NAME), *own):
            try:
                manifest = _parsed(store.read(key, MANIFEST_BYTES_MAX))
            except (ObjectNotFound, ObjectTooLarge):
                continue
            if manifest is not None and manifest["job_id"] != job.id:
                names |= _names(manifest) | {key.removeprefix(destination.prefix)}
    return names - {MANIFEST_NAME}


def remove_replaced(job: Job, destination: Destination, listed: set[str], store: Store) -> None:
    """Removes what earlier runs wrote. Raises OutputTrouble."""
    with at_destination():
        lying = {
            info.key.removeprefix(destination.prefix)
            for prefix in PREFIXES
            for info in destination.store.list(destination.key(prefix))
        }
        runs = {name: run for name in lying if is_of_another_run(name, job.id) and (run := run_in(name))}
        with store.snapshot() as tx:
            ended = tx.jobs.ended_runs(set(runs.values()))
        for name in sorted(lying):
            if name in listed or runs.get(name) in ended:
                destination.store.delete(destination.key(name))


def _head_of(name: str, destination: Destination) -> bytes | None:
    """The first bytes of a file of the output. None: there is none. Raises OutputTrouble."""
    with at_destination():
        try:
            return next(destination.store.stream(destination.key(name), 0, HEAD_BYTES), b"")
        except ObjectNotFound:
            return None


def _names(manifest: JsonObject) -> set[str]:
    files = [*(manifest.get("parts") or ()), *(manifest.get("errors") or ())]
    names = {file["name"] for file in files}
    inputs = manifest.get("inputs") or {}
    return names | ({inputs["listed_in"]} if inputs.get("listed_in") else set())


def _parsed(data: bytes) -> JsonObject | None:
    """The parsed manifest. None: it is no manifest of ours."""
    if data.count(b"{") + data.count(b"[") > ENTRIES_MAX or data.count(b",") > VALUES_MAX:
        return None
    try:
        manifest = json.loads(data)
        is_ours = isinstance(manifest["job_id"], str) and manifest["job_id"].startswith("job_")
        _names(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if is_ours else None


def _not_ours(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"The output has a {name} that this service did not write. Name another folder, or take it away.",
        param="output",
        code="output_not_ours",
    )
