import pytest

from nightshift.tenants.holdings import QUEUED, STORED, Excess, Holding, excess
from nightshift.tenants.quotas import Quotas


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (Holding(), None),
        (Holding(stored_files=3, stored_bytes=10**15), None),
        (Holding(stored_files=4), Excess("stored_files", 3, 4)),
        (Holding(stored_files=-1), None),
    ],
)
def test_a_quota_may_be_reached_and_not_exceeded(held: Holding, expected: Excess | None) -> None:
    assert excess(held, Quotas(stored_files=3), STORED) == expected


def test_queued_rows_are_those_of_bulk_jobs_and_online_requests() -> None:
    held = Holding(online_requests=2, bulk_rows=2, stored_files=9)

    assert excess(held, Quotas(queued_rows=3, stored_files=3), QUEUED) == Excess("queued_rows", 3, 4)
    assert excess(held, Quotas(queued_rows=4, stored_files=3), QUEUED) is None


def test_holdings_add_up_by_name() -> None:
    assert Holding(stored_files=1, stored_bytes=5) + Holding(stored_bytes=-2) == Holding(
        stored_files=1, stored_bytes=3
    )
