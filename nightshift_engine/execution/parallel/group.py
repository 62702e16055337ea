"""The processes that compute one model together, and what they exchange: NCCL between GPUs, gloo on a CPU.

Its members use torch's process groups as objects, not through the one group that a process may have by
default: a process may hold several models.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_dist: Any = torch.distributed  # its annotations leave out half of it

MEETING_TIMEOUT = timedelta(seconds=60)
"""Time for which a rank that is ready waits for the others, which are ready too. No other thread of its
process runs meanwhile: torch keeps Python's lock."""
EXCHANGE_TIMEOUT = timedelta(minutes=30)
"""Time for which a rank waits for one that is still there: some read their weights faster than others."""


class Group:
    """Ranks 0 to `size` - 1; each calls the same methods in the same order, on its own `device`.

    Every method waits for the others where the device is a CPU, and only orders the work on a GPU. They raise
    `RuntimeError` where another has ended.
    """

    def __init__(self, rank: int, size: int, device: torch.device, backend: Any) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._backend = backend

    @classmethod
    def join(cls, rank: int, size: int, device: torch.device, meeting_point: Path) -> "Group":
        """Waits for the others. `meeting_point` is the same new file for all."""
        store = _dist.FileStore(str(meeting_point), size)
        store.set_timeout(MEETING_TIMEOUT)
        return cls.over(store, rank, size, device)

    @classmethod
    def over(cls, store: Any, rank: int, size: int, device: torch.device) -> "Group":
        """Waits for the others, who have the same store."""
        if device.type == "cuda":
            options = _dist.ProcessGroupNCCL.Options()
            options._timeout = EXCHANGE_TIMEOUT
            backend = _dist.ProcessGroupNCCL(store, rank, size, options)
            backend.eager_connect_single_device(device)  # here, while all are known to be there
            return cls(rank, size, device, backend)
        options = _dist.ProcessGroupGloo._Options()
        options._timeout = EXCHANGE_TIMEOUT
        # Without a device gloo looks for the machine's own name, which not every resolver knows.
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return cls(rank, size, device, _dist.ProcessGroupGloo(store, rank, size, options))

    def sum(self, x: Tensor) -> None:
        """Puts the sum over all ranks into contiguous `x`, on every rank the same."""
        if x.numel():
            self._reduce(x, _dist.ReduceOp.SUM)

    def gather(self, x: Tensor) -> Tensor:
        """The contiguous `x` of all ranks, of one shape: `[size, *x.shape]`."""
        gathered = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        if x.numel():  # as on all ranks: a step may have no rows of logits
            self._backend._allgather_base(gathered, x).wait()
        return gathered.view(self.size, *x.shape)

    def broadcast(self, x: Tensor) -> None:
        """Puts rank 0's `x` into that of the others."""
        self._backend.broadcast(x, 0).wait()

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        numbers = torch.tensor([number], device=self.device)
        self._reduce(numbers, _dist.ReduceOp.MIN)
        return int(numbers.item())

    def abort(self) -> None:
        """Ends what waits on a GPU for a rank that has ended, in any thread: results since are worthless.

        Over gloo an ended process is seen by its closed connections.
        """
        self._backend.abort()

    def _reduce(self, x: Tensor, operation: Any) -> None:
        options = _dist.AllreduceOptions()
        options.reduceOp, options.asyncOp = operation, False
        self._backend.allreduce([x], options).wait()
