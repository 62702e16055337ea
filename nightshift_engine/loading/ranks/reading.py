"""Reads a rank's rows of a checkpoint's weights. Embeddings and what has one dimension are read whole."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from ...checkpoint.stored_tensors import StoredWeights, check_stored_tensors
from ...core.config import EngineConfig
from ...errors import ModelLoadFailed
from ...execution.attention.latent import expanded_only
from ...execution.device.held_weights import hold_weight
from ...execution.parallel.group import Group
from ...execution.parallel.sharded import HeldRows, run_of
from ..weights import LoadedCheckpoint, decoder_dtype
from .checks import cannot_be_split

_KEPT_IN_FLOAT32 = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
"""Attributes of transformers' classes with the names of modules that are not rounded."""


def load_rows(group: Group, config: EngineConfig, directory: Path) -> LoadedCheckpoint:
    """A transformers decoder with this rank's rows, on the group's device. Raises like `load_checkpoint`, and
    `InvalidConfig` for a model that cannot be split.
    """
    hf_config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    dtype = decoder_dtype(config, hf_config, group.device)
    check_stored_tensors(directory, config.model, hf_config, AutoModelForCausalLM)
    model = _without_weights(hf_config, dtype)
    _check_kind(model, dtype, config)
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    with ExitStack() as stack:
        stored = StoredWeights(directory, config.model, group.device, stack)
        info = read_into(model, stored, config.model, group)
    if (missing := info["missing_keys"]) and (others := info["unexpected_keys"]):
        renamed = f"its files have {min(others)} where its modules have {min(missing)}"
        raise cannot_be_split(config, f"{renamed}, and parts are read under the modules' names")
    return LoadedCheckpoint(model, hf_config, info)


@torch.no_grad()
def read_into(model: Any, stored: StoredWeights, name: str, group: Group) -> dict[str, Any]:
    """Gives a model that was made without weights its own; returns what is missing, as transformers does."""
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    own, known, names = dict(model.named_parameters()), model.state_dict(keep_vars=True), stored.names
    key_of = {id(parameter): key for key, parameter in own.items()}
    mismatched = []
    for key, parameter in own.items():
        if key not in names:
            continue
        if (shape := stored.shape(key)) != list(parameter.shape):
            mismatched.append((key, shape, parameter.shape))
        elif parameter.dim() > 1 and id(parameter) not in embeddings:
            path, _, own_name = key.rpartition(".")
            rows = _rows(stored, key, parameter, group)
            held = HeldRows(rows, len(parameter), group)
            hold_weight(model.get_submodule(path), own_name, held, rows)
        else:
            _set(model, parameter, stored.whole(key).to(parameter.dtype))
    for key in names & known.keys() - own.keys():
        if (tied := key_of.get(id(known[key]))) is None:
            known[key].copy_(stored.whole(key))  # a buffer
        elif tied in names:
            _check_same(stored, key, tied, len(known[key]), name, group)
    buffers = {key for key, buffer in model.named_buffers() if buffer.is_meta}
    missing, unexpected = (set(own) | buffers) - names, names - known.keys()
    return {"missing_keys": missing, "mismatched_keys": mismatched, "unexpected_keys": unexpected}


def _without_weights(hf_config: Any, dtype: torch.dtype) -> Any:
    """The model with its buffers, and with weights that have a shape only."""
    with _Unallocated():
        return AutoModelForCausalLM.from_config(hf_config, dtype=dtype, attn_implementation="eager")


class _Unallocated(TorchFunctionMode):
    """Leaves what is made without values, as weights are, without memory, where it has dimensions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            unallocated = func(*args, **(kwargs | {"device": "meta"}))
            if unallocated.dim() > 1:
                return unallocated
        return func(*args, **kwargs)


def _check_kind(model: Any, dtype: torch.dtype, config: EngineConfig) -> None:
    """Refuses, before any weight is read, what is not split."""
    if any(parameter.dim() > 2 for parameter in model.parameters()):
        reason = "it is a mixture of experts"
    elif expanded_only(model) is not None:
        reason = "it keeps latent KV, which all heads share"
    elif dtype != torch.float32 and any(getattr(model, name, None) for name in _KEPT_IN_FLOAT32):
        reason = f"it keeps some of its weights in float32 beside {dtype}"
    else:
        return
    raise cannot_be_split(config, reason)


def _rows(stored: StoredWeights, key: str, parameter: Any, group: Group) -> Tensor:
    """This rank's run of rows, filled up with zeros."""
    start, stop = run_of(len(parameter), group.rank, group.size)
    rows = stored.rows(key, start, stop).to(parameter.dtype)
    absent = run_of(len(parameter), 0, group.size)[1] - len(rows)
    return torch.cat([rows, rows.new_zeros(absent, *rows.shape[1:])]) if absent else rows


def _check_same(stored: StoredWeights, key: str, tied: str, num_rows: int, name: str, group: Group) -> None:
    """Refuses weights that are tied, and stored apart with other values; all ranks together see all rows."""
    run = run_of(num_rows, group.rank, group.size)
    if not torch.equal(stored.rows(key, *run), stored.rows(tied, *run)):
        raise ModelLoadFailed(
            f"cannot load model {name!r}: {key} and {tied} are tied and differ in its files"
        )


def _set(model: Any, old: Any, weight: Tensor) -> None:
    """Puts a weight wherever `model` has the parameter `old`."""
    new = torch.nn.Parameter(weight, requires_grad=False)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is old:
                module._parameters[name] = new
