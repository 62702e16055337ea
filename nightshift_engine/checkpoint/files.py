"""The modules.json of sentence-transformers: what a model's vectors go through, and where its files lie."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ..errors import ModelLoadFailed, UnsupportedModel
from .values import problem_of

GENERATION_CONFIG = "generation_config.json"
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "README.md"]
HUB_FILES_IGNORED = ["onnx/*", "openvino/*", "original/*", "consolidated*"]

SERVED_DTYPES = ("float32", "float16", "bfloat16", "float64")
"""Dtypes of stored weights. Integers and fp8 mean nothing without their scales."""

_JSON_BYTES_MAX = 64 * 1024 * 1024
"""Indices of the largest checkpoints have a quarter of it."""
_READ_WHOLE = (
    *("tokenizer*", "*vocab*", "merges.txt", "*.model", "*_tokens*.json", "chat_template*"),
    *("p*processor_config.json", GENERATION_CONFIG),
)
_WEIGHTS = (".safetensors", ".bin")
_LABELS_MAX = 1_000_000
"""transformers names each of them before it looks at the weights."""

_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_POINTER = b"version https://git-lfs."
_POINTER_BYTES_MAX = 1_024
"""Git LFS: a pointer file is shorter than that (docs/spec.md of git-lfs)."""
_MAYBE_POINTERS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def local_directory(model: str, revision: str | None = None) -> Path:
    """The directory of a path or hub id, fetched if it is not in the cache. Raises `ModelLoadFailed`."""
    if (path := Path(model)).is_dir():
        return path
    # Imported here: a local directory needs no hub client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        fetched = snapshot_download(
            model, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_FILES_IGNORED
        )
    except HFValidationError as error:
        there = "is a file, not a directory" if path.exists() else "does not exist"
        raise ModelLoadFailed(
            f"cannot load model {model!r}: it {there}, and it is no hub id either"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelLoadFailed(
            f"cannot load model {model!r}: it is no directory, and no hub id we can fetch: {error}"
        ) from error
    return Path(fetched)


def check_files(directory: Path, name: str) -> None:
    """Refuses what would be served as another model, or could not be read.

    `name` is what messages call the checkpoint. Raises `UnsupportedModel` or `ModelLoadFailed`.
    """
    if adapter := next((file for file in _ADAPTER_FILES if (directory / file).exists()), None):
        merge = "merge it into the model (merge_and_unload of peft) and serve what that saves"
        raise UnsupportedModel(name, f"{adapter} says that it is, or has, an adapter; {merge}")
    if pointer := next(_pointers(directory), None):
        raise ModelLoadFailed(f"cannot load model {name!r}: {pointer_reason(pointer.name)}")
    for path in sorted(directory.iterdir()):
        if problem := _problem_of(path):
            raise ModelLoadFailed(f"cannot load model {name!r}: {path.name} {problem}")
    if not (directory / "config.json").is_file():
        raise ModelLoadFailed(f"cannot load model {name!r}: there is no config.json in its directory")
    config = read_object(directory / "config.json", name)
    _check_code(config, name)
    _check_config(config, name)
    for part in (config, config.get("text_config") or {}):
        if isinstance(part, dict):
            _check_precision(part, name)


def check_generation_config(directory: Path, name: str) -> None:
    """Refuses one that cannot be used; transformers would go on without its end-of-sequence ids."""
    if (directory / GENERATION_CONFIG).exists():
        _check_values(read_object(directory / GENERATION_CONFIG, name), GENERATION_CONFIG, name)


def brings_own_code(directory: Path, auto_class: str = "AutoModel") -> bool:
    """Whether a checkpoint has code for its model beside it, which is never run."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return auto_class in (config.get("auto_map") or {})


def read_object(path: Path, name: str) -> dict[str, Any]:
    """A file that holds a JSON object. Raises `ModelLoadFailed` naming it."""
    content = read_json(path, name)
    if not isinstance(content, dict):
        raise ModelLoadFailed(f"cannot load model {name!r}: {path.name} is no JSON object")
    return content


def read_json(path: Path, name: str) -> Any:
    """Raises `ModelLoadFailed` naming the file."""
    try:
        if (size := path.stat().st_size) > _JSON_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, and at most {_JSON_BYTES_MAX} are read")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no JSON, or no UTF-8
        raise ModelLoadFailed(f"cannot load model {name!r}: {path.name} cannot be read: {error}") from error


def unreadable(directory: Path) -> str | None:
    """The JSON files of a directory that are no objects, with the reason: one that broke a library below."""
    for path in sorted(directory.glob("*.json")):
        try:
            read_object(path, directory.name)
        except ModelLoadFailed as error:
            if path.name != "modules.json":  # which is a list
                return str(error).partition(": ")[2]
    return None


def is_pointer(content: bytes) -> bool:
    """Whether a file that begins so stands for another one, which Git LFS has not fetched."""
    return content.startswith(_POINTER)


def pointer_reason(file: str) -> str:
    return f"{file} is a Git LFS pointer, not the file itself; fetch it (git lfs pull), or download it again"


def _problem_of(path: Path) -> str | None:
    """The reason why a library would read a file without end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return "is neither a file nor a directory"
    if path.suffix in _WEIGHTS or not any(path.match(pattern) for pattern in _READ_WHOLE):
        return None
    size = path.stat().st_size if path.is_file() else 0
    return f"has {size} bytes, and at most {_JSON_BYTES_MAX} are read" if size > _JSON_BYTES_MAX else None


def _pointers(directory: Path) -> Iterator[Path]:
    for pattern in _MAYBE_POINTERS:
        for path in sorted(directory.glob(pattern)):
            if path.is_file() and path.stat().st_size < _POINTER_BYTES_MAX and is_pointer(path.read_bytes()):
                yield path


def _check_code(config: dict[str, Any], name: str) -> None:
    """Refuses a kind of model that transformers has not, whether or not its repository has code for it."""
    # Imported here: where a model's files are is known without it, and it takes 2 s of CPU.
    from transformers import CONFIG_MAPPING
    from transformers import __version__ as transformers_version

    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type in CONFIG_MAPPING:
        return
    reason = f"transformers {transformers_version} has no model of type {model_type!r}"
    if config.get("auto_map"):
        reason += ", and the code in its repository (auto_map in config.json) is never run"
    raise UnsupportedModel(name, reason)


def _check_config(config: dict[str, Any], name: str) -> None:
    architectures = config.get("architectures")
    is_list = isinstance(architectures, list) and all(
        isinstance(architecture, str) for architecture in architectures
    )
    if architectures is not None and not is_list:
        wanted = "it must be a list of names, such as ['LlamaForCausalLM']"
        raise ModelLoadFailed(
            f"cannot load model {name!r}: config.json has architectures {architectures!r}; {wanted}"
        )
    for field, type_, wanted in (("model_type", str, "a text"), ("auto_map", dict, "an object")):
        if not isinstance(config.get(field), type_ | None):
            reason = f"config.json has {field} {config[field]!r}; it must be {wanted}"
            raise ModelLoadFailed(f"cannot load model {name!r}: {reason}")
    _check_labels(config, name)
    _check_values(config, "config.json", name)


def _check_values(values: dict[str, Any], file: str, name: str) -> None:
    if problem := problem_of(values):
        raise ModelLoadFailed(f"cannot load model {name!r}: {file} has {problem}")


def _check_labels(config: dict[str, Any], name: str) -> None:
    """Refuses labels that transformers would stumble over, or take memory without end for."""
    count, labels = config.get("num_labels"), config.get("id2label")
    if count is not None and not (type(count) is int and 0 <= count <= _LABELS_MAX):
        is_large = type(count) is int and count > 0
        wanted = f"at most {_LABELS_MAX} are served" if is_large else "it must be a whole number of 0 or more"
        raise UnsupportedModel(name, f"config.json has num_labels {count!r}; {wanted}")
    is_map = isinstance(labels, dict) and all(re.fullmatch(r"-?\d+", key) for key in labels)
    if labels is not None and not is_map:
        reason = "id2label in config.json is no map from numbers to texts"
        raise ModelLoadFailed(f"cannot load model {name!r}: {reason}")


def _check_precision(config: dict[str, Any], name: str) -> None:
    """Refuses weights that are computed without their scales, of a whole configuration or of its text model.

    Those that quantization_config describes are read with theirs, or refused, by `narrow/schemes.py`.
    """
    for field in ("compression_config", "quantization"):
        if config.get(field):
            raise UnsupportedModel(
                name, f"it is quantised ({field} in config.json), in a way that is not read"
            )
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype is not None and dtype not in SERVED_DTYPES:
        served = f"served are {', '.join(SERVED_DTYPES)}"
        raise UnsupportedModel(name, f"config.json says that its weights are of dtype {dtype!r}; {served}")


MODULES: Final = "modules.json"
MODULES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Module:
    type: str
    """The type as it is written, such as sentence_transformers.models.Pooling."""
    path: Path

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


def read_modules(directory: Path, name: str) -> list[Module] | None:
    """The modules that `modules.json` lists. None: there is no such file.

    Raises `ModelLoadFailed`, naming what is wrong in it.
    """
    if not (directory / MODULES).is_file():
        return None
    listed = read_json(directory / MODULES, name)
    if not isinstance(listed, list) or len(listed) > MODULES_MAX:
        raise _failed(name, f"it is no list of up to {MODULES_MAX} modules")
    return [_module(directory, number, entry, name) for number, entry in enumerate(listed)]


def _module(directory: Path, number: int, declared: Any, name: str) -> Module:
    if not isinstance(declared, dict):
        raise _failed(name, f"module {number} is no object")
    for field in ("type", "path"):
        if not isinstance(declared.get(field), str):
            raise _failed(name, f"module {number} has {field} {declared.get(field)!r}, which is no text")
    path = PurePosixPath(declared["path"])
    if path.is_absolute() or ".." in path.parts or "\0" in declared["path"]:
        raise _failed(name, f"module {number} has path {declared['path']!r}, which is outside its directory")
    return Module(declared["type"], directory / path)


def _failed(name: str, reason: str) -> ModelLoadFailed:
    return ModelLoadFailed(f"cannot load model {name!r}: {MODULES} cannot be read: {reason}")
