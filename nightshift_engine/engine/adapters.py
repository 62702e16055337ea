"""The adapters of a model: which are on the device, and what tells their numbers apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from ..core.adapter_slots import AdapterSlots
from ..errors import UnsupportedAdapter
from ..execution.device.devices import on_device


class AdapterLoader(Protocol):
    """The adapters of a model; `loading.adapters.Adapters` are the real ones."""

    num_slots: int
    digests: Mapping[str, str]
    """Digests that tell the numbers of adapters apart, by name."""

    def put(self, slot: int, name: str) -> None:
        """Loads an adapter into a slot, in place of what was there. Raises `UnsupportedAdapter`."""


def load_new(
    loader: AdapterLoader,
    slots: AdapterSlots,
    device: torch.device,
    give_up: Callable[[str, UnsupportedAdapter], None],
) -> None:
    """Loads the adapters that have got a slot. `give_up` ends the sequences of one that cannot be loaded.

    If it raises, the next call loads what is still to be loaded.
    """
    for name, slot in slots.new.items():
        try:
            with on_device(device):
                loader.put(slot, name)
            slots.note_loaded(name)
        except UnsupportedAdapter as error:
            give_up(name, error)
            slots.forget(name)
