"""Random LoRA adapters for tiny decoders, saved as PEFT does, and the models that they are merged into."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from nightshift_engine.core.config import AdapterPath


def linears(base: Path) -> dict[str, Any]:
    """The linear layers of a checkpoint but for the one that makes logits, by their paths."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    head = model.get_output_embeddings()
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    }


def outputs_and_inputs(linear: Any) -> tuple[int, int]:
    rows, columns = linear.weight.shape
    return (columns, rows) if isinstance(linear, Conv1D) else (rows, columns)


def save_adapter(
    directory: Path,
    base: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    only: Sequence[str] = (),
    change: Mapping[str, Tensor] | None = None,
    **config: Any,
) -> AdapterPath:
    """An adapter of all linear layers of `base`, or of those whose names are `only`, large enough to tell.

    `change` replaces or adds tensors, `config` fields of `adapter_config.json`.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for path, linear in linears(base).items():
        if only and path.rpartition(".")[2] not in only:
            continue
        outputs, inputs = outputs_and_inputs(linear)
        ranks = config.get("rank_pattern", {})
        own = next((value for key, value in ranks.items() if path.endswith(key)), rank)
        for which, shape in (("A", (own, inputs)), ("B", (outputs, own))):
            drawn = torch.randn(shape, generator=generator) * 0.3
            tensors[f"base_model.model.{path}.lora_{which}.weight"] = drawn
    names = sorted({key.split(".lora_")[0].rpartition(".")[2] for key in tensors})
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 6,
        "bias": "none",
        "target_modules": names,
    } | config
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors | dict(change or {}), directory / "adapter_model.safetensors")
    return AdapterPath(directory.name, str(directory))


def merged(base: Path, adapter: AdapterPath, scaling: float, directory: Path) -> Path:
    """The checkpoint whose weights are those of the base and `scaling` times those of the adapter."""
    shutil.copytree(base, directory)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tensors = load_file(Path(adapter.path) / "adapter_model.safetensors")
    for path, module in model.named_modules():
        key = f"base_model.model.{path}.lora_"
        if f"{key}A.weight" in tensors:
            update = scaling * tensors[f"{key}B.weight"].double() @ tensors[f"{key}A.weight"].double()
            update = update.T if isinstance(module, Conv1D) else update
            module.weight.data = (module.weight.double() + update).float()
    model.save_pretrained(directory)
    return directory
