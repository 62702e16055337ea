"""What to do about an error of the object store: one rule for planning, running and assembly. Pure."""

from typing import Literal

from nightshift.errors import CredentialsRefused, NightshiftError, StorageDenied, StorageUnavailable

Verdict = Literal["retry", "pause", "fail"]


def storage_verdict(error: NightshiftError, *, in_our_store: bool) -> Verdict:
    """What happens to the work that met this error.

    `retry`: later, with a growing delay. `pause`: the work waits for the operator to correct it. `fail`: no
    waiting helps, the job's owner gets the reason.

    A refusal is the operator's to correct in the service's own store, and the job owner's at a location that
    the job named. Refused credentials are always the operator's.
    """
    if isinstance(error, StorageUnavailable):
        return "retry"
    if isinstance(error, CredentialsRefused):
        return "pause"
    if in_our_store and isinstance(error, StorageDenied):
        return "pause"
    return "fail"
