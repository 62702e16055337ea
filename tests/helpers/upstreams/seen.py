"""Records of what a simulated upstream was asked, for tests to judge."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Arrival:
    path: str  # without /v1/
    prompt: str
    priority: int | None
    num_continued: int  # tokens of its answer that it brought
    time_s: float  # monotonic
    key: str | None = None


@dataclass
class Seen:
    """Requests for answers, in the order of their arrival, and what became of them."""

    arrivals: list[Arrival] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)  # of answers
    answered: Counter[str] = field(default_factory=Counter)  # by prompt: whole answers of status 200
    in_flight: int = 0
    in_flight_max: int = 0
    cancelled: int = 0  # by the client, before the answer's end
    asked_for_models: int = 0

    @property
    def prompts(self) -> list[str]:
        return [arrival.prompt for arrival in self.arrivals]

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"arrivals": [vars(arrival) for arrival in self.arrivals]}
