"""A model of an upstream, as its probe has found it."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject

CHATS: Final = "/v1/chat/completions"
CLASSIFY: Final = "/classify"  # beside `/v1`, as at vLLM
LIMITS: Final = ("max_tokens", "max_completion_tokens")
"""Names of a chat's limit of tokens: the one that all servers know but for some of OpenAI's models."""


@dataclass(frozen=True)
class Engine:
    """The program that runs at an upstream, as it says itself."""

    name: str
    version: str | None


@dataclass(frozen=True)
class ServedModel:
    """A model of an upstream, and what it answers."""

    id: str  # here
    id_there: str
    kind: ModelKind
    routes: frozenset[str]
    context_length: int
    root: str | None  # the checkpoint, as the upstream names it
    engine: Engine
    limit_field: str = LIMITS[0]
    takes_priority: bool = False
    continues: bool = False  # whether a chat streams, and goes on after the beginning of its answer

    @property
    def weights(self) -> str:
        """Facts that tell models of one name apart: the folder or repository, the kind and the context."""
        root = PurePosixPath(self.root or self.id_there).name
        return f"{root} ({self.kind.value}, {self.context_length} tokens)"

    @property
    def made_by(self) -> JsonObject:
        """Facts that its answers depend on."""
        model = self.root or self.id_there
        return {"engine": self.engine.name, "version": self.engine.version, "model": model}
