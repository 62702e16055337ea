"""Compiles the Triton kernels to machine code for one architecture; no device is needed. Prints a line each.

    python compile_kernels.py 90 int8

Run without TRITON_INTERPRET. The launchers are asked for their arguments by putting a recorder in the place
of each kernel, so what is compiled is what a device would run.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, get_args

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nightshift_engine.execution.linears.interface import Activation
from nightshift_engine.kernels.triton import decode, kv_write, lora, narrow, prefill, rows, sampling
from nightshift_engine.kernels.triton.launch import PagedKv
from tests.unit.engine.kernels.triton.attention_problems import PROBLEMS, Inputs, Problem, random_inputs

TYPE_NAMES = {
    torch.bool: "*i1",
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}
LARGE = {"heads": 16, "kv_heads": 8, "key_dim": 128}
CASES = {
    "0.6B-shaped": replace(PROBLEMS["bfloat16"], **LARGE),
    "float32, dim 256, everything": replace(PROBLEMS["window, softcap and sinks"], key_dim=256),
    "int8": PROBLEMS["int8 KV, bfloat16"],
    "fp8": PROBLEMS["fp8 KV, bfloat16"],
}


class Recorder:
    """Takes a kernel's place and notes the arguments of its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.launches.append((args, kwargs))


def launch_everything(inputs: Inputs) -> None:
    problem = inputs.problem
    kv = PagedKv(inputs.keys, inputs.values, inputs.key_scales, inputs.value_scales)
    parts = decode.SplitParts.allocate(8, problem.heads, 2, problem.key_dim, torch.device("cpu"))
    out = torch.empty_like(inputs.q)
    shared: dict[str, Any] = {
        "seqused_k": inputs.seqused_k,
        "block_table": inputs.block_table,
        "softmax_scale": problem.scale,
        "window": problem.window,
        "softcap": problem.softcap,
        "sinks": inputs.sinks,
    }
    kv_write.write_kv(inputs.key, inputs.value, kv, inputs.slots)
    prefill.attend_chunks(inputs.q, kv, out, cu_seqlens_q=inputs.cu_seqlens_q, **shared)
    for shared_tokens in (None, torch.zeros(5, dtype=torch.int32)):
        decode.attend_decodes(
            inputs.q[:5], kv, out[:5], max_seqlen_k=1024, split_size=512, parts=parts,
            shared_tokens=shared_tokens, **shared,
        )  # fmt: skip
    launch_rows(inputs)
    for rank in (16, 256):
        launch_adapters(inputs, rank)
    sampling.compile_all(151_936, torch.device("cpu"))


def launch_rows(inputs: Inputs) -> None:
    """Launches the kernels on rows of queries, keys and values, with every norm there is."""
    heads, kv_heads, dim, dtype = *inputs.q.shape[1:2], *inputs.key.shape[1:], inputs.q.dtype
    qkv = torch.zeros(5, (heads + 2 * kv_heads) * dim, dtype=dtype)
    weight, table = torch.ones(qkv.shape[1]), torch.ones(9, dim // 2)
    norm = rows.RowNorm(rows.LAYER, weight, weight, 1e-5)
    residual = torch.zeros(qkv.shape)
    rows.norm_rows(residual, norm, qkv, rows=torch.arange(5))
    rows.norm_rows(residual, norm, residual, adds=True, factor=0.5)
    rows.rotate_heads(
        qkv,
        torch.arange(5),
        rows.HeadRows(heads, rows.RowNorm(rows.RMS, weight[:dim], None, 1e-6)),
        rows.HeadRows(kv_heads, rows.RowNorm(rows.LAYER, weight[: kv_heads * dim], weight, 1e-6)),
        head_dim=dim,
        cosine=table,
        sine=table,
        is_interleaved=False,
    )
    inner = qkv.shape[1] // 2
    for activation in get_args(Activation):
        rows.activate(qkv, activation, qkv.new_empty(5, inner))
    launch_narrow(qkv)


def launch_narrow(x: torch.Tensor) -> None:
    """Launches the product with narrow weights, of all codes, with and without what they may have."""
    k, zeros, bias = x.shape[1], torch.zeros(64, 1, dtype=torch.int16), torch.ones(64)
    for code, given in (
        (narrow.INT4, (zeros, bias)),
        (narrow.INT8, (None, None)),
        (narrow.FP8, (None, bias)),
    ):
        codes = torch.zeros(64, k // (2 if code == narrow.INT4 else 1), dtype=torch.uint8)
        for height in narrow.HEIGHTS:
            narrow.multiply_narrow(
                x, codes, torch.ones(64, 1), *given, x.new_empty(5, 64),
                code=code, group_size=k, height=height,
            )  # fmt: skip


def launch_adapters(inputs: Inputs, rank: int) -> None:
    """Launches the kernels of adapters of queries, keys and values."""
    dtype, ends, slots = inputs.q.dtype, (512, 768, 1024), torch.ones(4, dtype=torch.int32)
    x, out = torch.zeros(5, 512, dtype=dtype), torch.zeros(5, 1024)
    a, b = torch.zeros(4, 3 * rank, 512, dtype=dtype), torch.zeros(4, 64, rank, 16, dtype=dtype)
    tiles = torch.tensor([[0, 0, 5]], dtype=torch.int32)
    lora.add_adapters(x, a, b, ends, slots, torch.arange(5, dtype=torch.int32), tiles, out, 1.0)


def compile_launch(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], architecture: int) -> Any:
    """As the just-in-time compiler specialises: None and 1 are constants, multiples of 16 are known."""
    names = kernel.arg_names
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    signature, attributes = {}, {}
    for index, (name, value) in enumerate(zip(names, args, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = TYPE_NAMES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value is None or (value == 1 and name.startswith("stride")):
            constants[name] = value
        else:
            signature[name] = "i32"
            if value % 16 == 0 and name.startswith("stride"):
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature={name: signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def compile_case(problem: Problem, architecture: int) -> dict[str, int]:
    """Bytes of shared memory each kernel takes, by name."""
    recorders = []
    for module in (prefill, decode, kv_write, rows, narrow, sampling, lora):
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, triton.runtime.jit.JITFunction) and name in (
                "_attend_chunk",
                "_attend_splits",
                "_merge_splits",
                "_write_rows",
                "_norm_row",
                "_rotate",
                "_activate",
                "_multiply",
                "_sum_chunks",
                "_find_cut",
                "_draw_row",
                "_shrink",
                "_expand",
            ):
                recorder = Recorder(kernel)
                setattr(module, name, recorder)
                recorders.append((module, name, recorder))
    launch_everything(random_inputs(problem, 1, torch.device("cpu")))
    shared = {}
    for module, name, recorder in recorders:
        setattr(module, name, recorder.kernel)
        compiled = [compile_launch(recorder.kernel, *launch, architecture) for launch in recorder.launches]
        shared[name] = max(binary.metadata.shared for binary in compiled)
    return shared


def main() -> None:
    architecture, name = int(sys.argv[1]), sys.argv[2]
    for kernel, num_bytes in compile_case(CASES[name], architecture).items():
        print(f"{kernel}\t{num_bytes}")


if __name__ == "__main__":
    main()
