"""Reads the headers of safetensors files, and refuses weights that transformers would cast without scales."""

import json
import math
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor

from ..errors import ModelLoadFailed, UnsupportedModel
from .files import SERVED_DTYPES, is_pointer, pointer_reason, read_object

OLD_BUFFERS = re.compile(r"(\.attn|\.attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|position_ids$")
"""Constants that older releases of transformers saved among the weights."""

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_SERVED = ("F32", "F16", "BF16", "F64")
_DTYPES = {
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
} | {
    f"{sign}{bits}": f"{kind}{bits}"
    for sign, kind in (("I", "int"), ("U", "uint"))
    for bits in (8, 16, 32, 64)
}
"""Names in a header and torch's; https://github.com/huggingface/safetensors, `Dtype`."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_HEADER_BYTES_MAX = 100_000_000
"""The dtype's name in the safetensors library."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    dtype: str
    """The dtype as torch calls it, or as the header does where that is unknown."""
    file: str
    is_served: bool
    shape: tuple[int, ...]


def check_stored_tensors(
    directory: Path, name: str, hf_config: Any, auto_class: Any, scaled: Collection[str] = ()
) -> None:
    """Refuses weight files that are incomplete, and weights of a dtype that would be cast without a scale.

    `auto_class` is what will load them; tensors named in `scaled` are read with their scales. Raises
    `ModelLoadFailed` or `UnsupportedModel`.
    """
    tensors = stored_tensors(directory, name)
    odd = [tensor for tensor in tensors if not tensor.is_served and tensor.name not in scaled]
    if not odd:
        return
    kept = _tensors_of(hf_config, auto_class)
    if refused := [tensor for tensor in odd if not _is_constant(tensor.name, kept)]:
        first, others = refused[0], f" and {len(refused) - 1} more" if refused[1:] else ""
        reason = f"its tensor {first.name} in {first.file} is stored as {first.dtype}{others}"
        served = f"served are {', '.join(SERVED_DTYPES)}"
        raise UnsupportedModel(name, f"{reason}, which would be computed without a scale; {served}")


def stored_tensors(directory: Path, name: str) -> Iterator[StoredTensor]:
    """All tensors of the files that transformers would load. Raises `ModelLoadFailed` naming a broken one."""
    for path in weight_files(directory, name):
        for key, tensor in _read_header(path, name).items():
            dtype = tensor["dtype"]
            shape = tuple(tensor["shape"])
            yield StoredTensor(key, _DTYPES.get(dtype, dtype), path.name, dtype in _SERVED, shape)


def num_stored_elements(directory: Path, name: str, without: Collection[str] = ()) -> int:
    """Numbers in all tensors of the files but those named. Raises `ModelLoadFailed` naming a broken file."""
    tensors = stored_tensors(directory, name)
    return sum(math.prod(tensor.shape) for tensor in tensors if tensor.name not in without)


class StoredWeights:
    """The tensors of a checkpoint's files, by name; of each, only what is asked for is read."""

    def __init__(self, directory: Path, name: str, device: torch.device, stack: ExitStack) -> None:
        self._stack, self._device = stack, device
        self._paths = {tensor.name: directory / tensor.file for tensor in stored_tensors(directory, name)}
        self._files: dict[Path, Any] = {}

    @property
    def names(self) -> set[str]:
        return set(self._paths)

    def shape(self, name: str) -> list[int]:
        return list(self._file(name).get_slice(name).get_shape())

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        rows: Tensor = self._file(name).get_slice(name)[start:stop]
        return rows

    def whole(self, name: str) -> Tensor:
        tensor: Tensor = self._file(name).get_tensor(name)
        return tensor

    def lazily(self, name: str) -> Any:
        """A tensor as transformers takes it, to be read when it is needed."""
        return self._file(name).get_slice(name)

    def _file(self, name: str) -> Any:
        path = self._paths[name]
        if path not in self._files:
            file = safe_open(path, framework="pt", device=str(self._device))
            self._files[path] = self._stack.enter_context(file)
        return self._files[path]


def weight_files(directory: Path, name: str) -> list[Path]:
    """The files that transformers would load: a whole one, else those of the index. Raises
    `ModelLoadFailed`.
    """
    if (directory / WHOLE).is_file():
        return [directory / WHOLE]
    if (directory / INDEX).is_file():
        weight_map = read_object(directory / INDEX, name).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise _failed(name, f"{INDEX} has no weight_map from weights to files")
        if beyond := next((file for file in weight_map.values() if Path(file).name != file), None):
            raise _failed(name, f"{INDEX} names {beyond!r}, which is no file of its directory")
        paths = [directory / file for file in sorted(set(weight_map.values()))]
        if absent := next((path.name for path in paths if not path.is_file()), None):
            raise _failed(name, f"{absent} is missing, which {INDEX} names")
        return paths
    if pickled := next((path for pattern in _PICKLES for path in sorted(directory.glob(pattern))), None):
        convert = "save it as safetensors (save_pretrained of transformers does)"
        raise _failed(name, f"{pickled.name} is a pickle, which can run code when it is read; {convert}")
    raise _failed(name, f"its directory has no weights in safetensors ({WHOLE} or {INDEX})")


def _read_header(path: Path, name: str) -> dict[str, dict[str, Any]]:
    """The tensors a file says it has. Its bytes must be as many as they take."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        content = file.read(length) if length <= min(size - 8, _HEADER_BYTES_MAX) else b""
    again = "download it again"
    if is_pointer(start + content) or start == b"version ":
        raise _failed(name, pointer_reason(path.name))
    if not content:
        raise _failed(name, f"{path.name} is incomplete or no safetensors file ({size} bytes); {again}")
    try:
        header = json.loads(content)
        tensors = {key: tensor for key, tensor in header.items() if key != "__metadata__"}
        needed = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        dtypes = [tensor["dtype"] for tensor in tensors.values()]
        sizes = [side for tensor in tensors.values() for side in tensor["shape"]]
        if not all(isinstance(side, int) and side >= 0 for side in sizes):
            raise ValueError("a tensor has a shape that is no list of sizes")
    except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _failed(name, f"{path.name} has no safetensors header: {error!r}; {again}") from error
    if size != needed or not all(isinstance(dtype, str) for dtype in dtypes):
        raise _failed(name, f"{path.name} is incomplete: it has {size} bytes of {needed}; {again}")
    return tensors


def _tensors_of(hf_config: Any, auto_class: Any) -> dict[str, Tensor]:
    """Parameters and buffers of the model that will be made, and of the one that config.json names."""
    architecture = next(iter(hf_config.architectures or ()), "")
    declared = getattr(transformers, architecture, None)
    with torch.device("meta"):
        models = [auto_class.from_config(hf_config), *([declared(hf_config)] if declared else [])]
    return {
        key: tensor for model in models for key, tensor in (*model.named_buffers(), *model.named_parameters())
    }


def _is_constant(stored: str, kept: dict[str, Tensor]) -> bool:
    """Whether the model has the tensor for integers, or older releases saved one of that name.

    Names may differ in the prefix of a base model.
    """
    same = [
        tensor
        for key, tensor in kept.items()
        if key == stored or key.endswith(f".{stored}") or stored.endswith(f".{key}")
    ]
    if not same:
        return OLD_BUFFERS.search(stored) is not None
    return not any(tensor.is_floating_point() for tensor in same)


def _failed(name: str, reason: str) -> ModelLoadFailed:
    return ModelLoadFailed(f"cannot load model {name!r}: {reason}")
