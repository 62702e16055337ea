"""Checks our engine on a GPU, then measures it: one command, from the root of the source tree.

    python benchmarks/gpu.py [--quick] [--skip-checks] [--out gpu.json]

Needs torch, triton, transformers, numpy, safetensors, tokenizers and this tree; nothing is downloaded. What
is wrong is reported before anything is timed. Speeds are of random weights in the shapes of Qwen3-0.6B and
Qwen3-8B, beside transformers' continuous batching on the same weights, and as a share of what the device's
own copy and matrix product allow. `--device cpu --quick` tries the script; its figures are of no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

# Run as a file, the script's own folder comes first, where modules have names that others use too.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.device import checks as gpu_checks  # noqa: E402
from benchmarks.device import speed as gpu_speed  # noqa: E402
from benchmarks.device.limits import Limits  # noqa: E402
from benchmarks.fixtures.models import QWENS, Shape, make_model  # noqa: E402
from nightshift_engine import Engine  # noqa: E402

Row = dict[str, Any]

WHOLE_SEED = 1


def main(arguments: list[str] | None = None) -> int:
    """0: all is right; 1: a check failed; 2: there is no such device."""
    options = _options(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "gpu.py: torch sees no CUDA device; --device cpu --quick tries the script without",
            file=sys.stderr,
        )
        return 2
    device = torch.device(options.device)
    report: Row = {"machine": _machine(device), "checks": [], "limits": {}, "models": []}
    print(
        f"{report['machine']['device']}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    if device.type == "cpu":
        print("This is a CPU: the figures below say that the script runs, and nothing about any GPU.")
    logging.basicConfig(format="  %(message)s")
    logging.getLogger("nightshift_engine").setLevel(logging.INFO)  # how a model is computed
    holds = options.skip_checks or _check(report, device)
    if holds or options.keep_going:
        _measure(report, device, options)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2))
    return 0 if holds else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one tiny model, short runs")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the script")
    parser.add_argument("--models", nargs="+", choices=QWENS, help="default: 0.6b 8b; with --quick: tiny")
    parser.add_argument("--batches", nargs="+", type=int, help="sequences that decode together")
    parser.add_argument("--out", type=Path, help="where to write everything as JSON")
    parser.add_argument("--skip-checks", action="store_true", help="only measure")
    parser.add_argument("--keep-going", action="store_true", help="measure even if a check failed")
    options = parser.parse_args(arguments)
    options.models = options.models or (["tiny"] if options.quick else ["0.6b", "8b"])
    options.batches = options.batches or ([1, 4] if options.quick else [1, 8, 32, 128, 256])
    return options


def _machine(device: torch.device) -> Row:
    on_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else f"CPU {platform.machine()}",
        "is_gpu": on_cuda,
        "compute_capability": torch.cuda.get_device_capability(device) if on_cuda else None,
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory if on_cuda else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _check(report: Row, device: torch.device) -> bool:
    print("\nchecks")
    holds = True
    for check in gpu_checks.run_checks(device):
        holds &= check.holds
        report["checks"].append(
            {"name": check.name, "error": check.error, "limit": check.limit, "holds": check.holds}
        )
        print(
            f"  {'ok   ' if check.holds else 'WRONG'} {check.name}: "
            f"{check.error:.2g} (at most {check.limit:.2g})"
        )
    return holds


def _measure(report: Row, device: torch.device, options: argparse.Namespace) -> None:
    dtype = torch.bfloat16
    limits = gpu_speed.measure_limits(device, dtype, quick=options.quick)
    report["limits"] = {"copy_bytes_per_s": limits.bytes_per_second, "gemm_flops": limits.flops_per_second}
    print(
        f"\nlimits: copy {limits.bytes_per_second / 1e9:.1f} GB/s, "
        f"bfloat16 product {limits.flops_per_second / 1e12:.2f} TFLOP/s"
    )
    for name in options.models:
        report["models"].append(_measure_model(name, limits, device, dtype, options))
        _free(device)


def _measure_model(
    name: str, limits: Limits, device: torch.device, dtype: torch.dtype, options: argparse.Namespace
) -> Row:
    shape, quick = QWENS[name], options.quick
    prompt_length, num_steps = (32, 8) if quick else (512, 64)
    context_length = 256 if quick else 4096
    model = make_model(shape, dtype, device, context_length)
    start = time.perf_counter()
    loaded = gpu_checks.loaded(
        model,
        max_num_seqs=max(options.batches),
        max_num_batched_tokens=64 if quick else 8192,
        enable_prefix_reuse=False,
        **({"num_kv_blocks": 64} if device.type == "cpu" else {}),
    )
    engine = Engine.over(loaded)
    gpu_speed.synchronize(device)
    result: Row = {"name": name, "startup_s": time.perf_counter() - start, "prefill": [], "decode": []}
    print(f"\n{name}: {shape.num_linear_parameters / 1e9:.2f} G parameters in linears and head, {dtype}")
    done = "self-test, kernels compiled, graphs recorded" if device.type == "cuda" else "self-test"
    print(f"  engine ready in {result['startup_s']:.1f} s after the model was made: {done}")
    for batch in options.batches:
        prompts = gpu_speed.random_prompts(shape, batch, prompt_length, seed=batch)
        gpu_speed.prefill_seconds(engine, prompts, device)  # to warm up
        seconds = gpu_speed.prefill_seconds(engine, prompts, device)
        least = limits.prefill_seconds(shape, dtype.itemsize, batch, prompt_length)
        result["prefill"].append(
            _row("prefill", batch, prompt_length, batch * prompt_length / seconds, least / seconds)
        )
        seconds = gpu_speed.decode_step_seconds(engine, prompts, num_steps, device)
        context = prompt_length + num_steps / 2
        least = limits.decode_seconds(shape, dtype.itemsize, batch, batch * context)
        result["decode"].append(_row("decode", batch, context, batch / seconds, least / seconds))
    result["sampling"] = _sampling(engine, shape, max(options.batches), num_steps, device)
    result["whole"] = _whole(engine, shape, device, quick)
    result["nano_vllm_tokens_per_s"] = _nano_vllm(engine, device, quick)
    del engine
    _free(device)
    engine = Engine.over(replace(loaded, config=replace(loaded.config, enable_prefix_reuse=True)))
    result["shared_prefix"] = _shared_prefix(engine, shape, max(options.batches), num_steps, device, quick)
    del engine, loaded
    _free(device)
    del model  # our engine has taken its weights apart
    _free(device)
    model = make_model(shape, dtype, device, context_length)
    _beside_transformers(result["whole"], model, shape)
    return result


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _row(kind: str, batch: int, context: float, tokens_per_second: float, fraction: float) -> Row:
    print(
        f"  {kind:7} batch {batch:4}, context {context:6.0f}: {tokens_per_second:12,.1f} tokens/s, "
        f"{fraction:7.2%} of the roofline"
    )
    return {
        "batch": batch,
        "context": context,
        "tokens_per_s": tokens_per_second,
        "roofline_fraction": fraction,
    }


def _sampling(engine: Engine, shape: Shape, batch: int, num_steps: int, device: torch.device) -> Row:
    """The share of a decode step that each way to sample adds to a greedy one."""
    prompts = gpu_speed.random_prompts(shape, batch, 32, seed=batch)
    greedy_s = gpu_speed.decode_step_seconds(engine, prompts, num_steps, device)
    shares = {}
    for name, params in gpu_speed.WAYS_TO_SAMPLE.items():
        gpu_speed.decode_step_seconds(engine, prompts, 4, device, params)  # to warm up
        step_s = gpu_speed.decode_step_seconds(engine, prompts, num_steps, device, params)
        shares[name] = step_s / greedy_s - 1
        print(f"  sampling, batch {batch}, {name}: {shares[name]:+.1%} of a greedy step")
    return {"batch": batch, "greedy_step_s": greedy_s, "shares": shares}


def _shared_prefix(
    engine: Engine, shape: Shape, batch: int, num_steps: int, device: torch.device, quick: bool
) -> Row:
    """Decoding of prompts of 700 tokens, of which 512 are the same, beside that of prompts all different."""
    shared, own = (32, 12) if quick else (512, 188 - num_steps // 2)
    prefix = gpu_speed.random_prompts(shape, 1, shared, seed=2)[0]
    ends = gpu_speed.random_prompts(shape, batch, own, seed=3)
    gpu_speed.prefill_seconds(engine, [[*prefix, 1]], device)  # the others find it
    together_s = gpu_speed.decode_step_seconds(engine, [prefix + end for end in ends], num_steps, device)
    apart = gpu_speed.random_prompts(shape, batch, shared + own, seed=4)
    apart_s = gpu_speed.decode_step_seconds(engine, apart, num_steps, device)
    print(
        f"  decode batch {batch}, {shared} of {shared + own} tokens shared: {batch / together_s:,.1f} "
        f"tokens/s, {apart_s / together_s:.2f} times those of prompts that share nothing"
    )
    return {"batch": batch, "shared": shared, "together_s": together_s, "apart_s": apart_s}


def _whole(engine: Engine, shape: Shape, device: torch.device, quick: bool) -> Row:
    """Prompts in, all tokens out, by us."""
    count, prompt_length, max_tokens = (4, 16, 8) if quick else (256, 256, 128)
    prompts = gpu_speed.random_prompts(shape, count, prompt_length, WHOLE_SEED)
    requests = gpu_speed.greedy_requests(prompts, max_tokens)
    gpu_speed.whole_tokens_per_s(engine, requests[:2], device)
    tokens_per_second = gpu_speed.whole_tokens_per_s(engine, requests, device)
    print(f"  {count} requests of {prompt_length} + {max_tokens}: {tokens_per_second:,.1f} output tokens/s")
    return {
        "requests": count,
        "prompt": prompt_length,
        "output": max_tokens,
        "tokens_per_s": tokens_per_second,
    }


def _nano_vllm(engine: Engine, device: torch.device, quick: bool) -> float:
    """nano-vllm's benchmark: prompts and answers of 100 to 1,024 tokens, drawn at temperature 0.6."""
    requests = gpu_speed.nano_vllm_requests(*((4, 16, 100) if quick else ()))
    tokens_per_second = gpu_speed.whole_tokens_per_s(engine, requests, device)
    print(f"  nano-vllm's {len(requests)} requests: {tokens_per_second:,.1f} output tokens/s")
    return tokens_per_second


def _beside_transformers(whole: Row, model: Any, shape: Shape) -> None:
    """The same requests by transformers' continuous batching, on the same weights."""
    prompts = gpu_speed.random_prompts(shape, whole["requests"], whole["prompt"], WHOLE_SEED)
    try:
        theirs = gpu_speed.transformers_speed(model, prompts, whole["output"])
    except gpu_speed.PeerFailed as reason:
        whole["transformers_failed"] = str(reason)
        print(f"  transformers' continuous batching did not run: {reason}")
        return
    ratio = whole["tokens_per_s"] / theirs.tokens_per_second
    whole |= {
        "transformers_tokens_per_s": theirs.tokens_per_second,
        "transformers_includes_setup": theirs.includes_setup,
        "ratio": ratio,
    }
    note = ", its set-up included" if theirs.includes_setup else ""
    print(
        f"  transformers' continuous batching: {theirs.tokens_per_second:,.1f}{note}; "
        f"we are at {ratio:.2f} times that"
    )


if __name__ == "__main__":
    sys.exit(main())
