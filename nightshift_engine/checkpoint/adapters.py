"""LoRA adapters as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

The names of fields are PEFT's. One that changes what is computed is read or refused; fields about training,
and those that other programs add, are not read.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from ..errors import UnsupportedAdapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT's, before the path of a module of the base."""
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they are."""
ALPHA_MAX = 1e9
"""Larger ones are no scaling of numbers that are trained."""
_PAIR = re.compile(r"(?P<path>.+)\.lora_(?P<which>[AB])\.weight")
_REFUSED_FIELDS = (
    *("modules_to_save", "use_dora", "lora_bias", "use_qalora", "layer_replication", "target_parameters"),
    *("trainable_token_indices", "alora_invocation_tokens", "arrow_config", "use_bdlora"),
)
"""Fields that must be absent, null, false or empty."""
_PARTIAL_FIELDS = ("layers_to_transform", "exclude_modules")
"""Fields by which not every layer has weights."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The update of one linear layer's weight: `scaling * b @ a`."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]
    scaling: float


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter's files, read and checked as far as they can be without the base."""

    pairs: Mapping[str, LoraPair]
    """The updates, by the path of the module in the base."""
    digest: str
    """Digest of both files."""
    target_modules: tuple[str, ...] = ()
    """Names of modules that have weights in every layer."""

    def missing_of(self, paths: Iterable[str]) -> str | None:
        """The first of a base's modules for which there should be weights, and are none."""
        ends = tuple(f".{module}" for module in self.target_modules)
        return next((path for path in paths if path.endswith(ends) and path not in self.pairs), None)


def read_adapter(name: str, directory: str) -> StoredAdapter:
    """Reads an adapter. Raises `UnsupportedAdapter` with the file and field that are at fault."""
    raw_config, raw_weights = (_read(name, Path(directory) / file) for file in (CONFIG, WEIGHTS))
    try:
        config = json.loads(raw_config)
    except (ValueError, RecursionError) as error:
        raise UnsupportedAdapter(name, f"{CONFIG} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedAdapter(name, f"{CONFIG} holds no object")
    _check_fields(name, config)
    try:
        tensors = load(raw_weights)
    except (SafetensorError, ValueError) as error:
        raise UnsupportedAdapter(name, f"{WEIGHTS} cannot be read: {error}") from error
    digest = hashlib.sha256(hashlib.sha256(raw_config).digest() + hashlib.sha256(raw_weights).digest())
    modules, is_partial = config.get("target_modules"), any(map(config.get, _PARTIAL_FIELDS))
    in_every_layer = tuple(map(str, modules)) if isinstance(modules, list) and not is_partial else ()
    return StoredAdapter(_pairs(name, config, tensors), digest.hexdigest()[:16], in_every_layer)


def stored_shapes(name: str, directory: str) -> dict[str, tuple[int, ...]]:
    """The shapes of an adapter's tensors, of which no more is read. Raises `UnsupportedAdapter`."""
    _read(name, Path(directory) / CONFIG)  # a directory that is none is named as at load
    try:
        with safe_open(Path(directory) / WEIGHTS, "pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UnsupportedAdapter(name, f"{WEIGHTS} cannot be read: {error}") from error


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnsupportedAdapter(name, f"{path.name} cannot be read: {error.strerror}") from error


def _check_fields(name: str, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UnsupportedAdapter(name, f"peft_type is {config.get('peft_type')!r}; only LORA is served")
    for field in _REFUSED_FIELDS:
        if config.get(field):
            raise UnsupportedAdapter(name, f"{field} is {config[field]!r}, which is not supported")
    if config.get("bias", "none") != "none":
        raise UnsupportedAdapter(name, f"bias is {config['bias']!r}; only 'none' is supported")
    start = config.get("init_lora_weights", True)
    if start not in PLAIN_STARTS:
        reason = f"init_lora_weights is {start!r}, which changes the base's weights too"
        raise UnsupportedAdapter(name, f"{reason}; convert it to plain LoRA as PEFT describes")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise UnsupportedAdapter(name, f"r must be an integer of at least 1, got {rank!r}")
    if not _is_number(alpha):
        raise UnsupportedAdapter(name, f"lora_alpha must be a number up to {ALPHA_MAX:.0e}, got {alpha!r}")
    for field, is_valid in (("rank_pattern", _is_rank), ("alpha_pattern", _is_number)):
        pattern = config.get(field) or {}
        if not isinstance(pattern, dict) or not all(map(is_valid, pattern.values())):
            raise UnsupportedAdapter(name, f"{field} must hold numbers by module, got {pattern!r}")
        try:
            [re.compile(key) for key in pattern]
        except re.error as error:
            raise UnsupportedAdapter(name, f"{field} has a key that is no pattern: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= ALPHA_MAX


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _pairs(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, LoraPair]:
    by_path: dict[str, dict[str, Tensor]] = {}
    for key, tensor in sorted(tensors.items()):
        match = _PAIR.fullmatch(key.removeprefix(PREFIX))
        if match is None or not key.startswith(PREFIX):
            raise UnsupportedAdapter(name, f"{key} is no LoRA weight of a linear layer{_why(key)}")
        if not tensor.is_floating_point() or tensor.dim() != 2:
            shape = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            raise UnsupportedAdapter(name, f"{key} is no matrix of floating-point numbers, but {shape}")
        if not tensor.float().isfinite().all():
            raise UnsupportedAdapter(name, f"{key} has numbers that are not finite")
        by_path.setdefault(match["path"], {})[match["which"]] = tensor
    if not by_path:
        raise UnsupportedAdapter(name, f"{WEIGHTS} has no weights")
    return {path: _pair(name, path, config, both) for path, both in by_path.items()}


def _why(key: str) -> str:
    reasons = {
        "lora_magnitude": "DoRA",
        "lora_embedding": "an embedding",
        "modules_to_save": "a whole module",
    }
    return next((f": it belongs to {what}" for part, what in reasons.items() if part in key), "")


def _pair(name: str, path: str, config: Mapping[str, Any], both: Mapping[str, Tensor]) -> LoraPair:
    for which in "AB":
        if which not in both:
            raise UnsupportedAdapter(name, f"{path} has no lora_{which}")
    a, b = both["A"], both["B"]
    rank = _of_module(config.get("rank_pattern") or {}, path, config["r"])
    if len(a) != rank or b.shape[1] != rank:
        shapes = f"lora_A {list(a.shape)} and lora_B {list(b.shape)}"
        raise UnsupportedAdapter(name, f"{path} has {shapes}, which are not of rank {rank}")
    alpha = _of_module(config.get("alpha_pattern") or {}, path, config["lora_alpha"])
    # Rank stabilised: Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA", 2023.
    return LoraPair(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _of_module(pattern: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    """The value of a pattern's first key that the end of a module's path matches, as in PEFT."""
    keys = (key for key in pattern if re.match(rf"(.*\.)?({key})$", path))
    return next((pattern[key] for key in keys), otherwise)
