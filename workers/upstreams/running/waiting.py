"""Requests that wait for a place at an upstream: by class, and within one in turns of their tenants. Pure."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
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
    is_shown: bool = False  # its client has seen a part of an answer
    answer: StreamedAnswer | None = None  # as far as it has come
    is_plain: bool = False  # a bulk row that is neither streamed nor continued: that was refused

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
    """The requests of one model. On the loop's thread, but for `count`."""

    def __init__(self) -> None:
        self._by_class: dict[PriorityClass, OrderedDict[str, deque[Pending]]] = {
            priority: OrderedDict() for priority in PriorityClass
        }
        self.count = 0

    def put(self, pending: Pending, *, first: bool = False) -> None:
        """`first`: before the others of its tenant, since it has waited before."""
        tenants = self._by_class[pending.inference.priority]
        queue = tenants.setdefault(pending.inference.tenant_id, deque())
        if first:
            queue.appendleft(pending)
        else:
            queue.append(pending)
        self.count += 1

    def next_of(self, priority: PriorityClass) -> Pending | None:
        """The next request of a class, which stays; None: there is none."""
        tenants = self._by_class[priority]
        return next(iter(tenants.values()))[0] if tenants else None

    def take(self, priority: PriorityClass) -> None:
        """Removes the next request; its tenant's others wait for the other tenants."""
        tenants = self._by_class[priority]
        tenant_id, queue = next(iter(tenants.items()))
        queue.popleft()
        self.count -= 1
        tenants.move_to_end(tenant_id)
        if not queue:
            del tenants[tenant_id]

    def remove(self, where: Callable[[Pending], bool]) -> list[Pending]:
        """Removes the requests for which `where` holds, and returns them."""
        removed = [pending for pending in self if where(pending)]
        gone = {*map(id, removed)}
        for tenants in self._by_class.values() if removed else ():
            for tenant_id, queue in [*tenants.items()]:
                left = deque(pending for pending in queue if id(pending) not in gone)
                if left:
                    tenants[tenant_id] = left
                else:
                    del tenants[tenant_id]
        self.count -= len(removed)
        return removed

    def __iter__(self) -> Iterator[Pending]:
        for tenants in self._by_class.values():
            for queue in tenants.values():
                yield from queue
