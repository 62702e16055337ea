"""A model on two ranks, of which one is a thread of the test's process; what they exchange goes by gloo.

In float32 only: transformers sets torch's default dtype, which all threads share, while it makes a model.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nightshift_engine import Engine, EngineConfig
from nightshift_engine.errors import EngineError
from nightshift_engine.execution.parallel.group import Group
from nightshift_engine.loading.model import LoadedModel, load_part
from nightshift_engine.loading.ranks.processes import Message
from nightshift_engine.loading.ranks.rank import serve
from tests.unit.engine.tiny.decoders import engine_config, load_tokenizer

CPU = torch.device("cpu")
END_MAX_S = 30.0


def on_two_ranks(function: Callable[[Group], Any]) -> list[Any]:
    """The results of `function` on rank 0 and on rank 1."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: function(Group.over(store, rank, 2, CPU)), range(2)))


class ThreadRanks:
    """Rank 0's view of a rank that is a thread, which ends with its connection."""

    def __init__(self, group: Group, connection: Connection) -> None:
        self.group = group
        self.num_runners = 0
        self.sent: list[Message] = []
        self._connection = connection

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self._connection.send(message)

    def check(self) -> None:
        """Finds nothing: a thread does not end before its process."""

    @contextmanager
    def in_step(self) -> Iterator[None]:
        yield


@contextmanager
def loaded_on_two_ranks(config: EngineConfig) -> Iterator[LoadedModel]:
    """Rank 0's part of a model while rank 1 serves its own. Raises what both raise at loading."""
    store, tokenizer = dist.HashStore(), load_tokenizer(config.model)
    ours, theirs = Pipe()

    def run_rank() -> None:
        group = Group.over(store, 1, 2, CPU)
        with suppress(EngineError):  # rank 0 raises it too
            serve(load_part(config, tokenizer, CPU, group), group, theirs)

    thread = threading.Thread(target=run_rank, daemon=True)
    thread.start()
    group = Group.over(store, 0, 2, CPU)
    ranks: Any = ThreadRanks(group, ours)
    try:
        yield replace(load_part(config, tokenizer, CPU, group), ranks=ranks)
    finally:
        ours.close()
        thread.join(END_MAX_S)  # it may wait for one that has failed


@contextmanager
def engine_on_two_ranks(directory: Path, **settings: Any) -> Iterator[Engine]:
    with loaded_on_two_ranks(engine_config(directory, tensor_parallel_size=2, **settings)) as model:
        yield Engine.over(model)
