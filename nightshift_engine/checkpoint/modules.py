"""The modules.json of sentence-transformers: what a model's vectors go through, and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ..errors import ModelLoadFailed
from .files import read_json

MODULES: Final = "modules.json"
MODULES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Module:
    type: str
    """As written, such as sentence_transformers.models.Pooling."""
    path: Path

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


def read_modules(directory: Path, name: str) -> list[Module] | None:
    """None: there is no such file. Raises `ModelLoadFailed`, naming what is wrong in it."""
    if not (directory / MODULES).is_file():
        return None
    listed = read_json(directory / MODULES, name)
    if not isinstance(listed, list) or len(listed) > MODULES_MAX:
        raise _failed(name, f"it is no list of up to {MODULES_MAX} modules")
    return [_module(directory, number, each, name) for number, each in enumerate(listed)]


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
