"""The interface of model kinds, as far as the engine knows them: what a checkpoint is, and what it needs.

A new kind is a module with a subclass of `Kind`, listed in `__init__.py` here. Its other half, which loads
and serves it, is a module in `workers/serving/kinds/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...errors import ModelLoadFailed
from ..stored_tensors import OLD_BUFFERS

TOKENIZER = ("tokenizer*", "*vocab*", "*.model", "*.tiktoken")
"""Files of which a tokenizer has at least one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a kind is recognised by, before any weight is loaded."""

    name: str
    """As the operator wrote it."""
    config: Any
    """The transformers configuration."""
    modules: Sequence[str] | None = None
    """Types in the modules.json of sentence-transformers, such as Pooling; None: there is no such file."""
    directory: Path | None = None
    """None: only the configuration is known."""

    @property
    def architecture(self) -> str | None:
        """The first class that config.json names."""
        return next(iter(self.config.architectures or ()), None)

    @property
    def has_modules(self) -> bool:
        return self.modules is not None

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.config.is_encoder_decoder)


class Kind(ABC):
    """A kind of model: at most one recognises a checkpoint, and what none recognises is refused."""

    name: ClassVar[str]
    """In the API and in messages; the value of its ModelKind."""
    does: ClassVar[str]
    """What its models do, after "it"."""
    serves: ClassVar[str]
    """Which checkpoints are served, for the refusal of others."""
    needs: ClassVar[tuple[str, ...]]
    """Of the files matching these patterns, its directory has at least one."""
    needed: ClassVar[str]
    """What those files are."""

    @abstractmethod
    def recognises(self, checkpoint: Checkpoint) -> bool:
        """Whether it is of this kind, by its configuration. Raises `UnsupportedModel` for what would be, but
        for something that is named.
        """

    @abstractmethod
    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Of the weights that a model of the class `loaded_as` leaves out, those that its answers need.

        With any, the checkpoint is not what its configuration says.
        """

    def missing(self, config: Any, names: Iterable[str]) -> list[str]:
        """Of the weights that its files lack, those that would be random numbers."""
        return sorted(names)

    def check_files(self, checkpoint: Checkpoint) -> None:
        """Raise `ModelLoadFailed` where a file is missing that every model of the kind has."""
        directory = checkpoint.directory
        if directory is None or any(any(directory.glob(pattern)) for pattern in self.needs):
            return
        raise ModelLoadFailed(f"cannot load model {checkpoint.name!r}: {self.needed} is missing")


def without_old_buffers(names: Iterable[str]) -> list[str]:
    """Weights without the constants that older releases of transformers saved among them."""
    return [name for name in names if not OLD_BUFFERS.search(name)]


def weights_of(model_class: Any, config: Any) -> list[str]:
    """The names of all weights of a transformers class."""
    with torch.device("meta"):
        return list(model_class(config).state_dict())
