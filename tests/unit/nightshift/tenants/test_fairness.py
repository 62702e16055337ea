import pytest

from nightshift.tenants.quotas import fair_share, may_take


def test_tenants_share_a_limit_equally() -> None:
    assert [fair_share(100, tenants) for tenants in (1, 3, 200)] == [100, 33, 0]


@pytest.mark.parametrize(
    ("amount", "held", "free", "allowed"),
    [(1, 0, 1, True), (1, 0, 0, False), (1, 15, 16, True), (1, 16, 16, False), (10, 0, 9, False)],
)
def test_a_tenant_holds_no_more_than_it_leaves_free(amount: int, held: int, free: int, allowed: bool) -> None:
    assert may_take(amount, held=held, free=free) is allowed


def test_tenants_that_take_all_they_may_leave_something_to_the_next() -> None:
    held = [0] * 5
    for tenant in range(5):
        while may_take(1, held=held[tenant], free=32 - sum(held)):
            held[tenant] += 1

    assert held == [16, 8, 4, 2, 1]
