"""A model at one of the upstreams that have it."""

from dataclasses import dataclass, field

from workers.upstreams.control.breaker import Breaker
from workers.upstreams.running.upstream import RunningUpstream
from workers.upstreams.served import ServedModel


@dataclass(eq=False)
class Place:
    """A model at one upstream."""

    upstream: RunningUpstream
    model: ServedModel
    absence: Breaker = field(init=False)  # opens where the upstream no longer has the model

    def __post_init__(self) -> None:
        self.absence = Breaker(f"{self.upstream.name}/{self.model.id_there}", faults_max=1)

    @property
    def is_usable(self) -> bool:
        return self.absence.opened_s is None and not self.upstream.is_open

    def may_be_tried(self, now_s: float) -> bool:
        return self.absence.wait_s(now_s) == 0 and self.upstream.may_be_tried(now_s)
