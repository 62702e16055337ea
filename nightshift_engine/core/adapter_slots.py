"""The adapters that a device holds, and those that running sequences use. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from ..errors import UnsupportedAdapter


class AdapterSlots:
    """Each adapter on the device has a slot. One that no running sequence uses gives it up to another, the
    least recently used first.
    """

    def __init__(self, num_slots: int = 0) -> None:
        self._free = list(range(num_slots))
        self._slots: dict[str, int] = {}
        self._users: Counter[str] = Counter()
        self._idle: OrderedDict[str, None] = OrderedDict()  # the least recently used first
        self._new: dict[str, int] = {}

    def may_take(self, adapter: str) -> bool:
        """Whether it has a slot, or may have one now."""
        return adapter in self._slots or bool(self._free) or bool(self._idle)

    def take(self, adapter: str) -> int:
        """The slot of an adapter for a sequence that begins to run; one for which `may_take` is true."""
        if adapter not in self._slots:
            self._give(adapter)
        self._idle.pop(adapter, None)
        self._users[adapter] += 1
        return self._slots[adapter]

    def give_back(self, adapter: str) -> None:
        """Notes that a sequence with this adapter runs no more."""
        self._users[adapter] -= 1
        if not self._users[adapter]:
            del self._users[adapter]
            self._idle[adapter] = None

    def load_new(self, put: Callable[[int, str], None], give_up: Callable[[str, str], None]) -> None:
        """Has `put` load each adapter that has got a slot since. One for which it raises `UnsupportedAdapter`
        loses that again, once `give_up` has ended its sequences. If it raises more, the next call goes on.
        """
        for name, slot in [*self._new.items()]:
            try:
                put(slot, name)
            except UnsupportedAdapter as error:
                give_up(name, str(error))
                del self._idle[name]
                self._free.append(self._slots.pop(name))
            del self._new[name]

    def check_integrity(self, running: Counter[str]) -> None:
        """Asserts that the users are those that run, and that no slot has two adapters."""
        assert self._users == running, f"used by {self._users}, and {running} run"
        assert self._slots.keys() == self._users.keys() | self._idle.keys(), "an adapter is in no state"
        slots = [*self._slots.values(), *self._free]
        assert len(set(slots)) == len(slots), "a slot is given twice"

    def _give(self, adapter: str) -> None:
        if self._free:
            slot = self._free.pop(0)
        else:
            gone, _ = self._idle.popitem(last=False)
            slot = self._slots.pop(gone)
            self._new.pop(gone, None)
        self._slots[adapter] = self._new[adapter] = slot
