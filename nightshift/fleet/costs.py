"""The cost of jobs: the time of workers that they take, at the prices of these. Pure."""

from dataclasses import dataclass
from typing import Final, Self

from nightshift.fleet.workers import Capacity

HOUR_S: Final = 3600.0


@dataclass(frozen=True)
class WorkerTime:
    """Seconds of workers of each capacity. A worker's time is shared equally by the bulk shards it holds."""

    spot_s: float = 0.0
    on_demand_s: float = 0.0

    @classmethod
    def on(cls, capacity: Capacity, seconds: float) -> Self:
        return cls(spot_s=seconds) if capacity is Capacity.SPOT else cls(on_demand_s=seconds)

    def __add__(self, other: "WorkerTime") -> "WorkerTime":
        return WorkerTime(self.spot_s + other.spot_s, self.on_demand_s + other.on_demand_s)

    def __bool__(self) -> bool:
        return self.total_s > 0

    @property
    def total_s(self) -> float:
        return self.spot_s + self.on_demand_s


NO_TIME: Final = WorkerTime()


@dataclass(frozen=True)
class Prices:
    """Prices of an hour of a worker, in a currency that the operator knows; None: not known."""

    spot: float | None = None
    on_demand: float | None = None

    def cost(self, time: WorkerTime) -> float | None:
        """The cost. None: a price that it takes is not known."""
        parts = [(time.spot_s, self.spot), (time.on_demand_s, self.on_demand)]
        if self == NO_PRICES or any(seconds > 0 and price is None for seconds, price in parts):
            return None
        return sum(seconds / HOUR_S * (price or 0.0) for seconds, price in parts)


NO_PRICES: Final = Prices()
