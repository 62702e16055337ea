"""Finds a Hugging Face checkpoint by path or hub id, and checks that its files are complete."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.errors import ConfigurationError

_HUB_ID: Final = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?)(@(?P<revision>[A-Za-z0-9][\w./-]{0,127}))?"
)
_PREPROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")  # files of image models
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_INDEX: Final = "model.safetensors.index.json"
_ADAPTER: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.:-]{0,127})=(?P<base>[^+]+)\+(?P<path>.+)")
_ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
_ADAPTER_FORM: Final = "NAME=MODEL+PATH, beside the model that it was trained on (docs/adapters.md)"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as the operator named it: `NAME=BASE+PATH`. `base` is a model's path, hub id or id."""

    name: str
    base: str
    path: str

    @classmethod
    def read(cls, reference: str) -> "Adapter | None":
        """The adapter that a reference names. None: it names a model."""
        match = _ADAPTER.fullmatch(reference)
        return None if match is None or os.path.exists(reference) else cls(**match.groupdict())

    @property
    def reference(self) -> str:
        """The name that a worker is given."""
        path = Path(self.path).expanduser().absolute()
        return f"{self.name}={model_id(self.base)}+{path}"


def split_adapters(references: Iterable[str]) -> tuple[tuple[str, ...], tuple[Adapter, ...]]:
    """The models among what the operator named, and the adapters."""
    models, adapters = list[str](), list[Adapter]()
    for reference in references:
        adapter = Adapter.read(reference)
        if adapter is None:
            models.append(reference)
        else:
            adapters.append(adapter)
    return tuple(models), tuple(adapters)


@dataclass(frozen=True)
class Checkpoint:
    """A model as the operator named it. `directory` is None for a hub id that has not been downloaded."""

    name: str
    is_hub_id: bool
    directory: Path | None
    adapter: Adapter | None = None  # that this is, in place of a model

    @property
    def reference(self) -> str:
        """The name that a worker is given: an absolute path, or the hub id and its revision."""
        if self.adapter is not None:
            return self.adapter.reference
        return self.name if self.is_hub_id else str(self.directory)

    @property
    def id(self) -> str:
        return model_id(self.reference)


def model_id(reference: str) -> str:
    """A model's name in the API: its hub id without a revision, or the last part of its path; of an adapter
    the name that it is given.

    Links are not followed, so a link can rename a model. The API and the worker share this rule.
    """
    if (adapter := Adapter.read(reference)) is not None:
        return adapter.name
    path = Path(reference).expanduser()
    is_path = reference.startswith(("/", ".", "~")) or path.exists()
    return Path(os.path.abspath(path)).name if is_path else hub_id(reference)[0]


def hub_id(reference: str) -> tuple[str, str | None]:
    """The repository of `org/model@revision`, and its revision: a commit, a tag or a branch; None: not given.

    Anything else is given back as it is.
    """
    match = _HUB_ID.fullmatch(reference)
    return (match["id"], match["revision"]) if match else (reference, None)


def check_distinct(references: Sequence[str], lazy: Sequence[str] = ()) -> None:
    """Raises ConfigurationError when two models would have one name in the API, or one is to be loaded at
    start and is `lazy` too.
    """
    if both := {*references} & {*lazy}:
        raise ConfigurationError(
            f"{min(both)} is named both in NIGHTSHIFT_MODELS (--model), which are loaded at start, and in "
            "NIGHTSHIFT_LAZY_MODELS (--lazy-model); name it in one of them",
            param="model",
        )
    seen: dict[str, str] = {}
    for reference in (*references, *lazy):
        other = seen.setdefault(model_id(reference), reference)
        if other != reference:
            raise ConfigurationError(
                f"{other} and {reference} would both be called {model_id(reference)!r}; "
                "name one of them by a link with another name",
                param="model",
            )


def check_references(references: Sequence[str], lazy: Sequence[str] = ()) -> None:
    """Raises ConfigurationError as `check_distinct` does, and for an adapter that is not named beside its
    base, or is none that can be served. Whether it goes with the base is found out as it is loaded.
    """
    check_distinct(references, lazy)
    pinned, adapters = split_adapters(references)
    ids = {model_id(path_or_id) for path_or_id in pinned}
    for adapter in (*split_adapters(lazy)[1], *adapters):
        if model_id(adapter.base) not in ids or adapter not in adapters:
            raise ConfigurationError(
                f"The adapter {adapter.name!r} is for {adapter.base!r}, which is not among the models that "
                "are loaded at start: name that one in NIGHTSHIFT_MODELS too, and the adapter there.",
                param="MODELS",
            )
        _check_adapter(adapter)


def find(name: str, *, may_download: bool = False) -> Checkpoint:
    """The checkpoint that a path or a hub id names. Raises ConfigurationError if it is absent or incomplete.

    `may_download`: a hub id need not be in the hub's cache yet.
    """
    if (adapter := Adapter.read(name)) is not None:
        return Checkpoint(name, False, _check_adapter(adapter), adapter)
    path = Path(name).expanduser()
    if path.is_dir():
        missing = list(problems(path))
        if missing and (path / _ADAPTER_FILES[0]).is_file():
            raise ConfigurationError(f"{path} is an adapter; name it {_ADAPTER_FORM}", param="model")
        if missing:
            raise ConfigurationError(f"{path} cannot be served: {'; '.join(missing)}", param="model")
        if "," in str(path.absolute()):
            raise ConfigurationError(f"{path}: a comma in a model's path is not supported", param="model")
        return Checkpoint(name, False, path.absolute())
    if path.exists():
        raise ConfigurationError(
            f"{path} is a file; name the directory with config.json and *.safetensors in it", param="model"
        )
    if _HUB_ID.fullmatch(name) is None:
        hint = f"; an adapter is named {_ADAPTER_FORM}" if "=" in name or "+" in name else ""
        raise ConfigurationError(f"there is no model at {path.absolute()}{hint}", param="model")
    return _on_the_hub(name, may_download)


def _check_adapter(adapter: Adapter) -> Path:
    """The adapter's directory. Raises ConfigurationError for what the file about it tells at once."""
    path = Path(adapter.path).expanduser()
    absent = [file for file in _ADAPTER_FILES if not (path / file).is_file()]
    if absent:
        raise ConfigurationError(
            f"adapter {adapter.name}: {path} has no {' and no '.join(absent)}; name the directory that PEFT "
            "has saved it in, with safe_serialization",
            param="model",
        )
    if "," in adapter.reference:
        raise ConfigurationError(f"{path}: a comma in an adapter's path is not supported", param="model")
    try:
        config = json.loads((path / _ADAPTER_FILES[0]).read_bytes())
        kind = "DORA" if config.get("use_dora") else config.get("peft_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"adapter {adapter.name}: {path / _ADAPTER_FILES[0]} cannot be read: {error}", param="model"
        ) from error
    if kind != "LORA":
        raise ConfigurationError(
            f"adapter {adapter.name}: it is of the kind {kind}; only plain LORA is served", param="model"
        )
    return path.absolute()


def problems(directory: Path) -> Iterator[str]:
    """Files that are missing from a checkpoint's directory."""
    if not (directory / "config.json").is_file():
        yield "config.json is missing"
    if not any((directory / name).is_file() for name in (*_TOKENIZERS, *_PREPROCESSORS)):
        yield "the tokenizer is missing (tokenizer.json; of images: preprocessor_config.json)"
    absent = [name for name in _weights(directory) if not (directory / name).is_file()]
    if absent:
        yield f"weights are missing ({', '.join(absent[:3])}); only safetensors are loaded"


def _weights(directory: Path) -> list[str]:
    """The files that the weights should be in."""
    index = directory / _INDEX
    if index.is_file():
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return [path.name for path in directory.glob("*.safetensors")] or ["model.safetensors"]


def _on_the_hub(name: str, may_download: bool) -> Checkpoint:
    cached = cached_snapshot(name)
    if cached is None and not may_download:
        raise ConfigurationError(not_downloaded(name), param="model")
    return Checkpoint(name, True, cached)


def not_downloaded(name: str) -> str:
    """The reason why a hub id is not served, and what to do."""
    return (
        f"{name} is no directory, and as a hub id it is not in the cache of downloaded models; download it "
        "(hf download), or set NIGHTSHIFT_MODEL_DOWNLOADS=true to let workers do it"
    )


def cached_snapshot(reference: str) -> Path | None:
    """The directory into which the hub's client downloaded this id, at its revision if one is given."""
    name, revision = hub_id(reference)
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    repository = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{name.replace('/', '--')}"
    snapshots = repository / "snapshots"
    head = repository / "refs" / (revision or "main")
    commits = [head.read_text().strip()] if head.is_file() else [revision] if revision else []
    known = [snapshots / commit for commit in commits] if commits else sorted(snapshots.glob("*"))
    return next((folder for folder in known if (folder / "config.json").is_file()), None)
