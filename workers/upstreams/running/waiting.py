"""Requests that wait for a place at an upstream: by class, and within one in turns of their tenants. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from nightshift.jobs.priorities import PriorityClass
from workers.serving.carry_over import ChoiceSoFar
from workers.serving.model_server import Inference
from workers.upstreams.messages.answers import StreamedAnswer


@dataclass(eq=False, slots=True)
class Pending:
    """A request that is not answered yet."""

    inference: Inference
    since_s: float  # when it came, monotonic
    tokens_expected: int
    breaks: int = 0  # how often an upstream broke it off and it came no further
    tokens_most: int = 0  # that it has had to continue from
    sent_s: float = 0.0  # when it was last sent
    is_shown: bool = False  # its client has seen a part of an answer
    answer: StreamedAnswer | None = None  # as far as it has come
    is_plain: bool = False  # a bulk row that is neither streamed nor continued, since that was in vain

    @property
    def id(self) -> str:
        return self.inference.id

    @property
    def is_bulk(self) -> bool:
        return self.inference.group is not None

    @property
    def so_far(self) -> ChoiceSoFar | None:
        """The answer as another try may continue it. On any thread."""
        return None if self.answer is None else self.answer.so_far

    def broke_off(self) -> None:
        """Counts a break, from 0 where it has come further than at those before."""
        tokens = 0 if self.so_far is None else self.so_far.num_tokens
        self.breaks = 1 if tokens > self.tokens_most else self.breaks + 1
        self.tokens_most = max(self.tokens_most, tokens)


class Waiting:
    """The requests of one model. On the loop's thread, but for `len`."""

    def __init__(self) -> None:
        self._by_id: dict[str, Pending] = {}
        self._tenants: dict[PriorityClass, OrderedDict[str, OrderedDict[str, Pending]]] = {
            priority: OrderedDict() for priority in PriorityClass
        }

    def put(self, pending: Pending, *, first: bool = False) -> None:
        """`first`: before the others of its tenant, since it has waited before."""
        tenants = self._tenants[pending.inference.priority]
        queue = tenants.setdefault(pending.inference.tenant_id, OrderedDict())
        queue[pending.id] = self._by_id[pending.id] = pending
        queue.move_to_end(pending.id, last=not first)

    def next_of(self, priority: PriorityClass) -> Pending | None:
        """The next request of a class, which stays; None: there is none."""
        for queue in self._tenants[priority].values():
            return next(iter(queue.values()))
        return None

    def take(self, pending: Pending) -> None:
        """Removes the next request; its tenant's others wait for the other tenants."""
        self.remove(pending.id)
        tenants, tenant_id = self._tenants[pending.inference.priority], pending.inference.tenant_id
        if tenant_id in tenants:
            tenants.move_to_end(tenant_id)

    def remove(self, inference_id: str) -> None:
        """Removes a request, if it is here."""
        if (pending := self._by_id.pop(inference_id, None)) is not None:
            tenants, tenant_id = self._tenants[pending.inference.priority], pending.inference.tenant_id
            del tenants[tenant_id][inference_id]
            if not tenants[tenant_id]:
                del tenants[tenant_id]

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending]:
        """All that wait now; those that are reached may be removed."""
        return iter([*self._by_id.values()])
