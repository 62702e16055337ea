"""A rank's process: it loads its part of a model, and then computes what rank 0 tells it, until that ends.

`python -m nightshift_engine.loading.ranks.rank FD`: the file descriptor is of a socket to rank 0.
"""

import logging
import os
import shutil
import signal
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from ...errors import EngineError
from ...execution.device.devices import DeviceMemory, on_device
from ...execution.model_runner import ModelRunner
from ...execution.parallel.group import Group
from ...text.tokenizer import Tokenizer
from ..model import LoadedModel, load_part
from ..runner import make_model_runner
from .processes import REFUSED_STATUS, ClearBlocks, NewRunner, Start, Step, rank_device

log = logging.getLogger(__name__)


def serve(model: LoadedModel, group: Group, connection: Connection) -> None:
    """Does what rank 0 says, in its order, until it closes the connection."""
    runner: ModelRunner | None = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if isinstance(message, NewRunner):
            runner = None  # before the next takes memory
            memory = DeviceMemory.measure(group.device, message.config.gpu_memory_utilization)
            memory = memory.at_most(message.memory)
            runner, _ = make_model_runner(replace(model, config=message.config), memory)
            continue
        assert runner is not None, "a runner comes first"
        if isinstance(message, ClearBlocks):
            runner.clear_blocks(message.blocks)
        elif isinstance(message, Step):
            promised = None
            if message.num_promised is not None:
                promised = torch.empty(message.num_promised, dtype=torch.int64, device=group.device)
                group.broadcast(promised)
            runner.run(message.step, promised)  # the logits are rank 0's to read


def _end_with_parent(directory: Path) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass  # nothing is written to it
    shutil.rmtree(directory, ignore_errors=True)  # a parent that was killed has left it
    os._exit(0)  # whatever the other threads wait for


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # those are for rank 0, with which this one ends
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    start: Start = connection.recv()
    threading.Thread(target=_end_with_parent, args=(start.meeting_point.parent,), daemon=True).start()
    config, device = start.config, rank_device(start.config, start.rank)
    connection.send(None)  # it is ready to meet the others
    with on_device(device):
        group = Group.join(start.rank, config.tensor_parallel_size, device, start.meeting_point)
        try:
            model = load_part(config, Tokenizer.load(config.model, config.revision), device, group)
        except EngineError as error:
            log.error("rank %d cannot load its part: %s", start.rank, error)
            sys.exit(REFUSED_STATUS)
        serve(model, group, connection)


if __name__ == "__main__":
    main()
