"""`kernels/native/lora.cpp`, called with tensors."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ....kernels.native.build import load_kernels
from ...device.native_calls import FIXED_ORDER, invoke
from .memory import PlaceMemory
from .rows import AdapterRows


class _LoraCall(ctypes.Structure):
    """`LoraCall` of lora.cpp."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("x", "a", "b", "out", "shrunk", "rows", "tiles", "ranks", "ends")
        ),
        *((name, ctypes.c_int64) for name in ("num_tiles", "parts", "rank", "k", "x_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in ("is_bfloat16", "out_is_bfloat16")),
        ("factor", ctypes.c_float),
    )


def add_adapters(
    x: Tensor,
    memory: PlaceMemory,
    rows: AdapterRows,
    shrunk: Tensor,
    out: Tensor,
    factor: float,
) -> None:
    """Adds `factor` times what adapters make of rows of `x` `[rows, in_features]` to those of `out`.

    `shrunk` is room for `[rows, parts * rank]`, float32.
    """
    assert x.dtype == memory.a.dtype, f"{x.dtype} inputs of adapters in {memory.a.dtype}"
    kernels: Any = load_kernels("lora", FIXED_ORDER)
    call = _LoraCall(
        x=x.data_ptr(),
        a=memory.a.data_ptr(),
        b=memory.b.data_ptr(),
        out=out.data_ptr(),
        shrunk=shrunk.data_ptr(),
        rows=rows.rows.data_ptr(),
        tiles=rows.tiles.data_ptr(),
        ranks=memory.ranks.data_ptr(),
        ends=memory.ends.data_ptr(),
        num_tiles=len(rows.tiles),
        parts=len(memory.part_ends),
        rank=memory.rank,
        k=memory.a.shape[2],
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        is_bfloat16=x.dtype == torch.bfloat16,
        out_is_bfloat16=out.dtype == torch.bfloat16,
        factor=factor,
    )
    invoke(kernels.add_adapters, call)
