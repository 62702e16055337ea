"""The models that workers serve. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from nightshift.jobs import Endpoint


class ModelKind(StrEnum):
    DECODER = "decoder"  # generates text
    ENCODER = "encoder"  # embeds text

    def serves(self, endpoint: Endpoint) -> bool:
        return endpoint.generates_text == (self is ModelKind.DECODER)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model some worker has loaded. Its id is a hub id, or the last part of its path."""

    id: str
    kind: ModelKind
    context_length: int  # tokens: prompt and output together
    revision: str  # what the weights are, so that results can be told apart: a hub revision or a digest
    created_at: datetime | None = None  # first registered
    position: int = 0  # in the worker's list; GET /v1/models keeps this order
