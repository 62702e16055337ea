"""Whose fault a storage error is, and what waiting can do about it."""

import pytest

from nightshift.errors import (
    CredentialsRefused,
    LocationNotAllowed,
    ObjectNotFound,
    StorageDenied,
    StorageUnavailable,
)
from nightshift.objectstore import ObjectChanged, ObjectDamaged, ObjectTooLarge
from nightshift.objectstore.verdicts import storage_verdict


@pytest.mark.parametrize("in_our_store", [True, False])
def test_a_store_that_is_away_is_tried_again_ours_or_the_users(in_our_store: bool) -> None:
    assert storage_verdict(StorageUnavailable(), in_our_store=in_our_store) == "retry"


def test_a_refusal_of_our_own_store_waits_for_the_operator_and_fails_no_job() -> None:
    assert storage_verdict(StorageDenied(), in_our_store=True) == "pause"


def test_a_refusal_of_a_place_the_job_named_is_the_jobs_own_fault() -> None:
    assert storage_verdict(StorageDenied(), in_our_store=False) == "fail"


def test_credentials_that_are_refused_wait_for_the_operator_whatever_place_they_were_for() -> None:
    assert storage_verdict(CredentialsRefused(), in_our_store=False) == "pause"


@pytest.mark.parametrize("in_our_store", [True, False])
@pytest.mark.parametrize(
    "error", [ObjectNotFound(), ObjectChanged(), ObjectDamaged(), ObjectTooLarge(), LocationNotAllowed()]
)
def test_what_no_waiting_mends_fails_at_once(error: Exception, in_our_store: bool) -> None:
    assert storage_verdict(error, in_our_store=in_our_store) == "fail"  # type: ignore[arg-type]
