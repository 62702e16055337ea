"""Measures a batch in which many LoRA adapters are mixed beside the same batch without any.

    python -m benchmarks.adapters                  # 16 adapters of rank 16 in a batch of 64
    python -m benchmarks.adapters --modules q_proj,v_proj --dtype bfloat16

One engine runs both in turns, round after round, on prompts of random tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.fixtures.checkpoints import DECODERS, DTYPES, ensure
from benchmarks.measure import cpu_times
from benchmarks.report import Figure, report_figures
from nightshift_engine import AdapterPath, Engine, EngineConfig, Request, SamplingParams

GOAL = 0.85
PROMPT_TOKENS = 16
VOCABULARY = 1000
"""Prompts are of tokens below this."""


def linears(model: Path, modules: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The path, outputs and inputs of the layers that adapters change: by default all projections."""
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 it is no mapping
                path = name.removesuffix(".weight")
                last = path.rpartition(".")[2]
                if last in modules or (not modules and last.endswith("_proj") and path != name):
                    outputs, inputs = tensors.get_slice(name).get_shape()
                    yield path, outputs, inputs


def save_adapter(directory: Path, layers: Iterable[tuple[str, int, int]], rank: int) -> AdapterPath:
    """An adapter as PEFT saves it, of small random numbers."""
    tensors = {}
    for path, outputs, inputs in layers:
        tensors[f"base_model.model.{path}.lora_A.weight"] = torch.randn(rank, inputs) * inputs**-0.5
        tensors[f"base_model.model.{path}.lora_B.weight"] = torch.randn(outputs, rank) * 0.01
    directory.mkdir()
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, directory / "adapter_model.safetensors")
    return AdapterPath(directory.name, str(directory))


def tokens_per_s(engine: Engine, names: Sequence[str | None], count: int, max_tokens: int) -> float:
    """Speed of `count` requests that run together, with these adapters in turn."""
    rng = random.Random(0)
    for number in range(count):
        prompt = [rng.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        adapter = names[number % len(names)]
        engine.add(Request(f"{number}", prompt, sampling, adapter=adapter, output_kind="final_only"))
    began_s = time.perf_counter()
    while engine.has_work:
        engine.step()
    return count * max_tokens / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--model", choices=DECODERS, default="medium")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--modules", default="", help="names of layers, such as q_proj,v_proj; default: all")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    model = ensure(chosen.model, chosen.dtype)
    layers = list(linears(model, [name for name in chosen.modules.split(",") if name]))
    with tempfile.TemporaryDirectory() as folder:
        names = [f"adapter-{number}" for number in range(chosen.adapters)]
        config = EngineConfig(
            str(model),
            dtype=chosen.dtype,
            max_num_seqs=chosen.batch,
            max_loras=chosen.adapters,
            adapters=tuple(save_adapter(Path(folder) / name, layers, chosen.rank) for name in names),
            enable_prefix_reuse=False,
        )
        engine = Engine.load(config)
        before, base, adapted = cpu_times(), list[float](), list[float]()
        for _ in range(chosen.rounds + 1):
            base.append(tokens_per_s(engine, [None], chosen.batch, chosen.max_tokens))
            adapted.append(tokens_per_s(engine, names, chosen.batch, chosen.max_tokens))
        others = cpu_times().other_share_since(before)
    del base[0], adapted[0]  # adapters were loaded, and pages touched
    ratios = [with_adapters / without for with_adapters, without in zip(adapted, base, strict=True)]
    what = f"{chosen.adapters} adapters of rank {chosen.rank}, {len(layers)} layers, {chosen.dtype}"
    figures = [
        Figure("base alone", round(median(base)), "tokens/s"),
        Figure(what, round(median(adapted)), "tokens/s"),
        Figure("of the base's speed, least", round(min(ratios), 3), ""),
        Figure("of the base's speed", round(median(ratios), 3), "", GOAL, "more"),
        Figure("CPU time of other processes", round(others, 3), ""),
    ]
    print(report_figures("adapters", figures))


if __name__ == "__main__":
    main()
