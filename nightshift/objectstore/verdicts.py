"""The reaction to an object store's error, for planning, running and assembly."""

from typing import Literal

from nightshift.errors import CredentialsRefused, NightshiftError, StorageDenied, StorageUnavailable

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
