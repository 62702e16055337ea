"""The interface of model kinds, as far as a worker knows them: how a checkpoint becomes a model server."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import torch

from nightshift.fleet.checkpoints import Adapter, model_id
from nightshift.fleet.models import Model, ModelKind, OutputSizes
from nightshift.process.settings import WorkerSettings
from nightshift_engine.encoders import EncoderConfig
from nightshift_engine.models import DeviceMemory, Footprint, Kind
from workers.serving.model_config import ModelConfig
from workers.serving.model_server import OnFatal
from workers.serving.stepping_server import SteppingServer

CONFIGURATION: Final = (".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True)
class Source:
    """A checkpoint that a worker was given."""

    path_or_id: str
    directory: Path
    position: int  # in the worker's list
    config: ModelConfig | None = None  # what the operator says of its batching
    adapters: Sequence[Adapter] = ()

    @property
    def id(self) -> str:
        return model_id(self.path_or_id)

    @contextmanager
    def batching(self) -> Iterator[EncoderConfig | None]:
        """The configured batching; errors about it name its file."""
        if self.config is None:
            yield None
            return
        with self.config.blamed():
            yield self.config.batching

    @property
    def revision(self) -> str:
        """Identifies what answers depend on: the hub's commit, or a digest of the tokenizer's and
        configuration's files, and of the sizes and times of the weights.
        """
        if not Path(self.path_or_id).is_dir():
            return self.directory.name
        digest = hashlib.sha256()
        for path in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            name = path.relative_to(self.directory)
            if path.suffix == ".safetensors":
                digest.update(f"{name} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
            elif path.suffix in CONFIGURATION:
                digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return f"local-{digest.hexdigest()[:16]}"


@dataclass(frozen=True)
class Loaded:
    """A model with its weights. `serve` makes its server, ready to start."""

    path_or_id: str
    serve: Callable[[DeviceMemory | None, OnFatal], SteppingServer]
    memory_device: torch.device | None = None
    """The device on which it keeps memory between its steps; `serve` is given its part. None: it keeps
    none.
    """


class ServedKind(ABC):
    """The way in which one kind of model is loaded, and the server that runs its steps.

    What an input costs is the server's to say, in the tokens that its batcher counts.
    """

    kind: ClassVar[Kind]
    """The engine's declaration: its name, and how its checkpoints are recognised."""
    is_batched_dynamically: ClassVar[bool] = True
    """Whether a model configuration can say how its inputs are batched."""
    has_matryoshka: ClassVar[bool] = False
    """... and to which sizes its vectors may be cut."""
    has_adapters: ClassVar[bool] = False
    """Whether its models take LoRA adapters."""

    @property
    def model_kind(self) -> ModelKind:
        """The kind as the API names it."""
        return ModelKind(self.kind.name)

    @abstractmethod
    def footprint(self, source: Source, settings: WorkerSettings) -> Footprint:
        """Memory that it will take of the device, from its files. Raises as `load` does."""

    @abstractmethod
    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        """Raises ConfigurationError, or what the engine raises."""

    def model(
        self, source: Source, *, context_length: int | None = None, **facts: str | int | OutputSizes | None
    ) -> Model:
        """The model as it is registered; without `context_length`, one that is not loaded. `facts`: fields
        of `Model` that not every kind has.
        """
        return Model(
            id=source.id,
            kind=self.model_kind,
            context_length=context_length,
            revision=source.revision,
            position=source.position,
            **facts,  # type: ignore[arg-type]
        )
