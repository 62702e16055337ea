"""KV memory in eight bits: the dtypes that have a float32 scale per token and head.

What the kernels, their reference and the back ends agree on. Knows no kernel, so it needs no Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

QUANTISED_DTYPES = {torch.int8: 127.0, torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).max}
"""With the number that the largest element of a row becomes."""


def as_indexable(memory: Tensor) -> Tensor:
    """The same memory; fp8 as int8, because only newer releases of torch index fp8 itself."""
    return memory.view(torch.int8) if memory.dtype == torch.float8_e4m3fn else memory
