"""A transformers model of whose weights each rank holds some rows, and all while one of its modules runs.

How a module holds them is in `device/held_weights.py`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .group import Group


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of a weight: the ranks' runs are of one length, and the last are filled up with zeros."""

    rows: Tensor
    num_rows: int
    """Rows of the whole weight."""
    group: Group

    def __deepcopy__(self, _: Any) -> "HeldRows":
        return self  # nothing is ever written to, and a group is not copied

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The whole weight; all ranks call it."""
        return self.group.gather(self.rows).flatten(0, 1)[: self.num_rows].to(dtype)


def run_of(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    """The first of a rank's rows, and the one after its last. Runs are of one length but the last ones."""
    length = -(-num_rows // size)
    return min(rank * length, num_rows), min((rank + 1) * length, num_rows)
