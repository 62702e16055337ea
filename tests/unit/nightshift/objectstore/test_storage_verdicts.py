"""Whose fault a storage error is, and what waiting can do about it."""

import pytest

from nightshift.errors import (
    CredentialsRefused,
    LocationNotAllowed,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore import ObjectChanged, ObjectDamaged, ObjectTooLarge
from nightshift.objectstore.verdicts import storage_verdict


@pytest.mark.parametrize(
    ("error", "in_our_store", "verdict"),
    [
        (StorageUnavailable(), True, "retry"),
        (StorageUnavailable(), False, "retry"),
        (StorageDenied(), True, "pause"),  # the operator's to mend, and no job fails
        (StorageDenied(), False, "fail"),  # the job named the place
        (CredentialsRefused(), False, "pause"),  # whatever place they were for
    ],
)
def test_a_fault_is_tried_again_waits_for_the_operator_or_is_the_jobs_own(
    error: StorageError, in_our_store: bool, verdict: str
) -> None:
    assert storage_verdict(error, in_our_store=in_our_store) == verdict


@pytest.mark.parametrize("in_our_store", [True, False])
@pytest.mark.parametrize(
    "error", [ObjectNotFound(), ObjectChanged(), ObjectDamaged(), ObjectTooLarge(), LocationNotAllowed()]
)
def test_what_no_waiting_mends_fails_at_once(error: Exception, in_our_store: bool) -> None:
    assert storage_verdict(error, in_our_store=in_our_store) == "fail"  # type: ignore[arg-type]
