"""Loads a model whose linear layers hold their weights in few bits: those of its files, or rounded here."""

import importlib.util
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from ..checkpoint.files import read_object
from ..checkpoint.narrow.schemes import Scheme
from ..checkpoint.narrow.tensors import NarrowCheckpoint, NarrowTensor, scheme_of
from ..checkpoint.narrow.weight import Code, NarrowWeight, round_weight
from ..checkpoint.stored_tensors import StoredWeights
from ..core.config import EngineConfig
from ..errors import InvalidConfig, UnsupportedModel
from ..execution.device.held_weights import HeldNarrow, hold_weight, narrow_of
from ..execution.device.native_calls import FIXED_ORDER
from ..kernels.native.build import load_kernels

log = logging.getLogger(__name__)

HELD_CODES: tuple[Code, ...] = ("int4", "int8", "fp8")
"""Codes that layers hold; others are dequantised as they are read."""


def forget_quantization(hf_config: Any) -> None:
    """Makes a configuration that of the dequantised model: transformers would load quantisers of its own."""
    for part in (hf_config, hf_config.get_text_config()):
        if getattr(part, "quantization_config", None) is not None:
            del part.quantization_config


def check_config(config: EngineConfig, directory: Path) -> Scheme | None:
    """The layout of a checkpoint's weights, if it is quantised.

    Raises `UnsupportedModel` or `InvalidConfig` for what that does not go with.
    """
    scheme = scheme_of(read_object(directory / "config.json", config.model), config.model)
    if scheme is None:
        return None
    method = scheme.method
    for field, is_set in (
        ("deterministic", config.deterministic),
        ("tensor_parallel_size", config.tensor_parallel_size > 1),
    ):
        if is_set:
            reason = f"it is quantised ({method}), which {field} does not go with"
            raise UnsupportedModel(config.model, reason)
    own = set(HELD_CODES) & set(method.split())
    if config.weight_dtype != "auto" and config.weight_dtype not in own:
        again = f"would round the weights of a {method} checkpoint again; set it to auto"
        raise InvalidConfig(f"weight_dtype {config.weight_dtype!r} {again}")
    return scheme


def read_model(
    directory: Path, name: str, narrow: NarrowCheckpoint, made_by: Any, config: Any, dtype: torch.dtype,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """A transformers model and what transformers says of its weights; linear layers hold theirs narrow.

    `made_by` is the class, of transformers, that makes it. Raises `UnsupportedModel` naming a tensor.
    """
    with torch.device("meta"):
        described = made_by.from_config(config)
    held = _held(narrow, described)
    with ExitStack() as stack:
        stored = StoredWeights(directory, name, torch.device("cpu"), stack)
        state = {key: stored.lazily(key) for key in stored.names - narrow.parts}
        for weight in narrow.weights.values():
            is_held = weight.name in held
            state[weight.name] = _StandIn(weight, dtype) if is_held else _Dequantized(weight, stored, name)
        model, info = type(described).from_pretrained(
            None, config=config, dtype=dtype, state_dict=state, **options
        )
        if (directory / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(directory)
        _hold(model, {weight: narrow.weights[weight].read(stored.whole, name) for weight in sorted(held)})
    log.info("model %s has %s weights: %s", name, narrow.scheme.method, memory_of(narrow, held, dtype))
    return model, info


def memory_of(narrow: NarrowCheckpoint, held: set[str], dtype: torch.dtype) -> str:
    """The memory of its narrow weights, in words."""
    dequantized = [weight for weight in narrow.weights.values() if weight.name not in held]
    num_bytes = dtype.itemsize * sum(weight.num_elements for weight in dequantized)
    said = f"{len(held)} held narrow in {sum(narrow.weights[name].num_bytes for name in held) / 1e9:.2f} GB"
    if dequantized:
        said += f", {len(dequantized)} dequantised into {num_bytes / 1e9:.2f} GB of {dtype}"
    return said


def rounded_to(config: EngineConfig, device: torch.device) -> Code | None:
    """The code that linear layers' weights are rounded to at load.

    None: they are not, or as they are packed, with their inputs (int8 on a CPU).
    """
    code = next((code for code in HELD_CODES if code == config.weight_dtype), None)
    return None if code == "int8" and device.type == "cpu" else code


def round_linears(model: Any, code: Code, name: str) -> None:
    """Rounds the weights of a model's linear layers but the one that makes logits. Raises `UnsupportedModel`.

    All that follows, the reference of the self-test included, computes with the rounded weights.
    """
    if any(parameter.dim() > 2 for parameter in model.parameters()):
        reason = f"it is a mixture, whose experts weight_dtype {code!r} does not round"
        raise UnsupportedModel(name, f"{reason}; set weight_dtype to auto, or to int8 on a CPU")
    head = model.get_output_embeddings()
    linears = {path: module for path, module in model.named_modules() if type(module) is torch.nn.Linear}
    rounded = 0
    for path, module in linears.items():
        if module is not head and (weight := round_weight(module.weight, code)) is not None:
            _hold(model, {f"{path}.weight": weight})
            rounded += 1
    if not rounded:
        raise UnsupportedModel(name, f"it has no linear layers that weight_dtype {code!r} could round")
    log.info("model %s: weights of %d of %d linear layers rounded to %s", name, rounded, len(linears), code)


def move_held(model: Any, device: torch.device) -> None:
    """Puts what layers hold narrow on a device."""
    for module in model.modules():
        if (weight := narrow_of(module)) is not None:
            like = torch.empty((), dtype=module.weight.dtype, device=device)
            hold_weight(module, "weight", HeldNarrow(weight.to(device)), like)


def num_kept_bytes(narrow: NarrowCheckpoint, hf_config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """The bytes that narrow weights take once they are loaded: as they are stored where a layer holds one and
    this machine has a kernel for it, else in `dtype`.

    An estimate: layers that are packed together may differ. `hf_config` loses its quantisation.
    """
    forget_quantization(hf_config)
    with torch.device("meta"):
        held = _held(narrow, AutoModelForCausalLM.from_config(hf_config))
    has_kernels = load_kernels("linear", FIXED_ORDER) is not None if device.type == "cpu" else has_triton()
    if not has_kernels or narrow.scheme.format.act_order:
        held = set()
    return sum(
        weight.num_bytes if weight.name in held else weight.num_elements * dtype.itemsize
        for weight in narrow.weights.values()
    )


def has_triton() -> bool:
    """Whether our kernels for a GPU can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def _held(narrow: NarrowCheckpoint, model: Any) -> set[str]:
    """Names of the narrow weights that linear layers of `model` have under the same name."""
    head = model.get_output_embeddings()
    shapes = {
        f"{path}.weight": tuple(module.weight.shape)
        for path, module in model.named_modules()
        if type(module) is torch.nn.Linear and module is not head
    }
    return {
        weight.name
        for weight in narrow.weights.values()
        if shapes.get(weight.name) == weight.shape and not weight.scheme.is_transposed
    }


def _hold(model: Any, weights: Mapping[str, NarrowWeight]) -> None:
    for name, weight in weights.items():
        module = model.get_submodule(name.removesuffix(".weight"))
        hold_weight(module, "weight", HeldNarrow(weight), module.weight)


class _StandIn:
    """Loaded in place of a weight that its layer will hold narrow: takes no memory."""

    def __init__(self, weight: NarrowTensor, dtype: torch.dtype) -> None:
        self._weight, self._dtype = weight, dtype

    def __getitem__(self, _: Any) -> Tensor:
        return torch.zeros((), dtype=self._dtype).expand(self._weight.shape)


class _Dequantized:
    """Loaded in place of a weight, and computed when transformers reads it."""

    def __init__(self, weight: NarrowTensor, stored: StoredWeights, model: str) -> None:
        self._weight, self._stored, self._model = weight, stored, model

    def __getitem__(self, _: Any) -> Tensor:
        weight = self._weight.read(self._stored.whole, self._model).dequantized(torch.float32)
        return weight.transpose(-1, -2).contiguous() if self._weight.scheme.is_transposed else weight
