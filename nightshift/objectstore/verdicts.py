"""What is to be done when the object store did not do what was asked. Pure."""

from typing import Literal

from nightshift.errors import CredentialsRefused, NightshiftError, StorageDenied, StorageUnavailable

Verdict = Literal["retry", "pause", "fail"]


def storage_verdict(error: NightshiftError, *, in_our_store: bool) -> Verdict:
    """What becomes of the work that met this error.

    `retry`: it is worth trying again, a little later each time. `pause`: only the operator can mend it, and
    the work waits for that, looked at now and then. `fail`: no waiting helps, the owner is told the reason.

    A refusal is the operator's fault where the store is the service's own, and the job's where the job named
    the place. Credentials are the operator's wherever they are refused.
    """
    if isinstance(error, StorageUnavailable):
        return "retry"
    if isinstance(error, CredentialsRefused):
        return "pause"
    if in_our_store and isinstance(error, StorageDenied):
        return "pause"
    return "fail"
