"""The reaction to an object store's error, for planning, running and assembly."""

from typing import Literal

from nightshift.errors import CredentialsRefused, NightshiftError, StorageDenied, StorageUnavailable
from nightshift.jobs import InputError
from nightshift.objectstore.objects import ObjectChanged

StorageReaction = Literal["retry", "pause", "fail"]


def storage_verdict(error: NightshiftError, *, in_our_store: bool) -> StorageReaction:
    """`retry` with a growing delay, `pause` until the operator acts, or `fail` with the reason to the job's
    owner.

    A refusal is the operator's to correct in the service's own store, and the owner's at a location that the
    job named. Refused credentials are always the operator's.
    """
    if isinstance(error, StorageUnavailable):
        return "retry"
    if isinstance(error, CredentialsRefused):
        return "pause"
    if in_our_store and isinstance(error, StorageDenied):
        return "pause"
    return "fail"


def as_input_error(error: NightshiftError, param: str) -> InputError:
    """An error about an input or an output, as the job's owner sees it."""
    if isinstance(error, ObjectChanged):
        return InputError("input_changed", f"The input was replaced: {error.message}.", param="input")
    return InputError(error.code or "unreadable_input", error.message, param=error.param or param)
