"""Loads the weights of a model that scores texts, with the head it scores by: all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from ...checkpoint.files import brings_own_code
from ...checkpoint.kinds import Kind
from ...checkpoint.stored_tensors import check_stored_tensors
from ...core.config import DTypeName
from ...errors import EngineError, ModelLoadFailed, UnsupportedModel
from ...loading.weights import check_complete, checkpoint_dtype, resolve_dtype, said


def load_scorer(directory: Path, auto_class: Any, kind: Kind, dtype: DTypeName, device: torch.device) -> Any:
    """A model of a class of transformers, on its device, in eval mode; `kind` says which weights it needs.

    Raises ModelLoadFailed or UnsupportedModel.
    """
    name = str(directory)
    if brings_own_code(directory, auto_class.__name__):
        raise UnsupportedModel(name, "its files bring code of their own (auto_map), which is not run")
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        check_stored_tensors(directory, name, config, auto_class)
        model, loaded = auto_class.from_pretrained(
            directory,
            config=config,
            dtype=resolve_dtype(dtype, checkpoint_dtype(config), device),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except EngineError:
        raise
    except Exception as error:  # whatever a broken file makes of the libraries below
        raise ModelLoadFailed(f"cannot load {name!r}: {said(error)}") from error
    check_complete(name, loaded)
    made_as = type(model).__name__
    if unused := kind.unused(config, made_as, loaded["unexpected_keys"]):
        reason = f"{made_as} has no use for {unused[0]} and {len(unused) - 1} more weights"
        raise UnsupportedModel(name, reason)
    return model.to(device).eval()
