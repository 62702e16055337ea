"""The adapters of a loaded model: checked against it at load, and read again when one gets a slot."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..checkpoint.adapters import StoredAdapter, read_adapter, stored_shapes
from ..core.config import AdapterPath, EngineConfig
from ..errors import InvalidConfig, UnsupportedAdapter
from ..execution.decoder.adapters.memory import AdapterMemory, LowRank
from ..execution.decoder.decoder import Decoder

log = logging.getLogger(__name__)

RANK_STEP = 8
"""Ranks of slots are multiples of this."""
RANK_MAX = 256


class Adapters:
    """Adapters by name. Their numbers are on the device only while they have a slot."""

    def __init__(
        self, paths: Mapping[str, str], digests: Mapping[str, str], memory: AdapterMemory, num_slots: int
    ) -> None:
        self._paths, self.digests, self._memory, self.num_slots = paths, digests, memory, num_slots

    def warming_up(self) -> AbstractContextManager[None]:
        """Has the kernels of every layer that some adapter changes run, in steps that name slots."""
        return self._memory.warming_up()

    def put(self, slot: int, name: str) -> None:
        """Reads an adapter's files into a slot. Raises `UnsupportedAdapter` where they are gone, or others
        than at the start.
        """
        stored = read_adapter(name, self._paths[name])
        if stored.digest != self.digests[name]:
            raise UnsupportedAdapter(name, "its files have changed since the model was loaded; load it again")
        updates = {
            path: LowRank(pair.a, pair.b.float() * pair.scaling) for path, pair in stored.pairs.items()
        }
        self._memory.put(slot, updates)


def adapter_bytes(config: EngineConfig, dtype: torch.dtype) -> int:
    """The bytes of the slots of a model's adapters, from the headers of their files. Raises
    `UnsupportedAdapter`.

    An estimate: of layers that are packed together, those that no adapter changes have memory too.
    """
    rows, ranks = dict[str, int](), [RANK_STEP]
    for adapter in config.adapters:
        for key, shape in stored_shapes(adapter.name, adapter.path).items():
            if len(shape) == 2:  # others are refused at load
                is_a = key.endswith(".lora_A.weight")
                rows[key] = shape[1] if is_a else shape[0]
                ranks.append(shape[0] if is_a else shape[1])
    return _num_slots(config) * _rounded_up(max(ranks)) * sum(rows.values()) * dtype.itemsize


def _num_slots(config: EngineConfig) -> int:
    return min(config.max_loras, len(config.adapters))


def _rounded_up(rank: int) -> int:
    return -(-rank // RANK_STEP) * RANK_STEP


def load_adapters(
    config: EngineConfig, forward_pass: Any, weight_dtype: str, dtype: torch.dtype, device: torch.device
) -> Adapters | None:
    """Checks the adapters of a model, and takes memory for their slots; None without any.

    `weight_dtype` is what its linear layers hold: `ModelFacts.weight_dtype`. Raises `UnsupportedAdapter`
    naming the first that does not go with the model, or `InvalidConfig`.
    """
    if not config.adapters:
        return None
    if not isinstance(forward_pass, Decoder):
        reason = "its base runs through transformers' own modules, and adapters go with written-out decoders"
        raise UnsupportedAdapter(config.adapters[0].name, reason)
    if weight_dtype != "auto":
        reason = f"its base keeps weights in {weight_dtype}, and adapters go with weights of 16 or 32 bits"
        raise UnsupportedAdapter(config.adapters[0].name, reason)
    digests, changed, rank = dict[str, str](), set[str](), RANK_STEP
    for adapter in config.adapters:  # the numbers of one at a time
        stored = _checked(adapter, config, forward_pass)
        digests[adapter.name] = stored.digest
        changed.update(stored.pairs)
        rank = max(rank, *(len(pair.a) for pair in stored.pairs.values()))
    num_slots, rank = _num_slots(config), _rounded_up(rank)
    try:
        memory = AdapterMemory(
            forward_pass.targets, sorted(changed), slots=num_slots, rank=rank, dtype=dtype, device=device
        )
    except (RuntimeError, MemoryError) as error:
        what = f"{num_slots} adapters of rank {rank}"
        raise InvalidConfig(f"no memory for {what} at a time; lower max_loras: {error}") from error
    forward_pass.adapters = memory
    log.info("%d adapters of %s, %d slots of rank %d", len(digests), config.model, num_slots, rank)
    paths = {adapter.name: adapter.path for adapter in config.adapters}
    return Adapters(paths, digests, memory, num_slots)


def _checked(adapter: AdapterPath, config: EngineConfig, decoder: Decoder) -> StoredAdapter:
    """An adapter whose layers are the decoder's, in number and shape."""
    stored = read_adapter(adapter.name, adapter.path)
    if (missing := stored.missing_of(decoder.targets)) is not None:
        raise UnsupportedAdapter(adapter.name, f"target_modules names {missing}, for which it has no weights")
    for path, pair in stored.pairs.items():
        target = decoder.targets.get(path)
        if target is None or not decoder.can_adapt(target):
            raise UnsupportedAdapter(
                adapter.name, f"{config.model} has no linear layer {path} that it could change"
            )
        theirs = (pair.b.shape[0], pair.a.shape[1])
        if theirs != (target.out_features, target.in_features):
            ours = [target.out_features, target.in_features]
            reason = (
                f"{path} is {ours} in {config.model}, and the adapter is for {list(theirs)}: another base"
            )
            raise UnsupportedAdapter(adapter.name, reason)
        if len(pair.a) > RANK_MAX:
            raise UnsupportedAdapter(adapter.name, f"{path} has rank {len(pair.a)}, more than {RANK_MAX}")
    return stored
