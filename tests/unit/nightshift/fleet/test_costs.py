"""The cost of workers' time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.fleet.costs import Prices, WorkerTime
from nightshift.fleet.workers import Capacity

HOUR = 3600.0
times = st.builds(WorkerTime, st.floats(0, 1e6), st.floats(0, 1e6))


def test_an_hour_of_each_capacity_costs_its_price() -> None:
    prices = Prices(spot=0.5, on_demand=2.0)

    assert prices.cost(WorkerTime.on(Capacity.SPOT, HOUR)) == 0.5
    assert prices.cost(WorkerTime.on(Capacity.ON_DEMAND, HOUR / 2)) == 1.0
    assert prices.cost(WorkerTime(HOUR, HOUR)) == 2.5


def test_without_a_price_that_it_takes_the_cost_is_not_known() -> None:
    assert Prices().cost(WorkerTime(HOUR, 0)) is None
    assert Prices().cost(WorkerTime()) is None
    assert Prices(spot=0.5).cost(WorkerTime(HOUR, 1)) is None
    assert Prices(spot=0.5).cost(WorkerTime(HOUR, 0)) == 0.5
    assert Prices(spot=0.0).cost(WorkerTime(HOUR, 0)) == 0.0


@given(times, times, st.floats(0, 100), st.floats(0, 100))
def test_two_jobs_cost_together_what_each_costs(
    one: WorkerTime, other: WorkerTime, spot: float, on_demand: float
) -> None:
    prices = Prices(spot, on_demand)
    costs = [prices.cost(one), prices.cost(other)]

    assert prices.cost(one + other) == pytest.approx(sum(cost for cost in costs if cost is not None))
