"""Sizes to which a model's vectors may be cut, if it was trained so (Matryoshka learning)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint.files import read_object
from ..errors import InvalidConfig
from .request import Vector

CARD_CHARS_MAX = 65_536
_CARD = "README.md"
_LOSSES = re.compile(r"^\s*- loss:Matryoshka(2d)?Loss\s*$", re.MULTILINE)
"""Tags that sentence-transformers writes into the card of what it has trained."""

DIMENSIONS_MAX = 1_000_000
SIZES_MAX = 64


@dataclass(frozen=True, slots=True)
class Matryoshka:
    """The sizes that a model was trained for, by vLLM's names."""

    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    """The only sizes that it was trained for; (): any."""

    def __post_init__(self) -> None:
        """Raises InvalidConfig."""
        sizes = self.matryoshka_dimensions
        if len(sizes) > SIZES_MAX or not all(1 <= size <= DIMENSIONS_MAX for size in sizes):
            raise InvalidConfig(f"matryoshka_dimensions must be up to {SIZES_MAX} sizes of at least 1")

    @classmethod
    def read(cls, directory: Path) -> Matryoshka:
        """Reads what a checkpoint says: in `config.json`, or by the tags of its card."""
        config = read_object(directory / "config.json", str(directory))
        sizes = _sizes(config.get("matryoshka_dimensions"))
        is_so = config.get("is_matryoshka") is True or bool(sizes)
        return cls(is_so or _card_says_so(directory / _CARD), sizes)

    def objection(self, size: int, dimensions: int) -> str | None:
        """The reason why vectors of a model with so many dimensions cannot have the size that is asked
        for.
        """
        if size == dimensions:
            return None
        if not 1 <= size <= dimensions:
            return f"must be 1 to {dimensions}, got {size}"
        if not self.is_matryoshka:
            return f"must be {dimensions}, got {size}: nothing says that its vectors can be cut"
        if self.matryoshka_dimensions and size not in self.matryoshka_dimensions:
            sizes = sorted({*self.matryoshka_dimensions, dimensions})
            return f"must be one of {', '.join(map(str, sizes))}, got {size}"
        return None


def cut(vector: Vector, dimensions: int, *, is_normalized: bool) -> Vector:
    """The first numbers of a vector, of unit length again where the whole has it."""
    part = vector[:dimensions]
    length = float(np.linalg.norm(part)) if is_normalized else 0.0
    return (part / length).astype(np.float32) if length else part.copy()


def _sizes(declared: Any) -> tuple[int, ...]:
    """The whole numbers of what a checkpoint holds that are sizes."""
    sizes = declared if isinstance(declared, list) else []
    return tuple(size for size in sizes[:SIZES_MAX] if type(size) is int and 1 <= size <= DIMENSIONS_MAX)


def _card_says_so(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as card:
        text = card.read(CARD_CHARS_MAX)
    if not text.startswith("---\n"):
        return False
    front_matter = text[4:].partition("\n---")[0]
    return _LOSSES.search(front_matter) is not None
