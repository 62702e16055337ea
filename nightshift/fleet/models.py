"""The models that workers serve."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class ModelKind(StrEnum):
    """The kind of computation of a model. Each endpoint names the kinds that serve it."""

    DECODER = "decoder"
    ENCODER = "encoder"
    CLASSIFIER = "classifier"
    IMAGE_CLASSIFIER = "image_classifier"
    IMAGE_ENCODER = "image_encoder"
    SEQ2SEQ = "seq2seq"

    @property
    def does(self) -> str:
        return _DOES[self]

    @property
    def runs_in_one_step(self) -> bool:
        """Whether an input is done after one step, and needs no memory between steps."""
        return self not in (ModelKind.DECODER, ModelKind.SEQ2SEQ)


_DOES: Final = {
    ModelKind.DECODER: "generates text",
    ModelKind.ENCODER: "makes embeddings",
    ModelKind.CLASSIFIER: "scores text",
    ModelKind.IMAGE_CLASSIFIER: "scores images",
    ModelKind.IMAGE_ENCODER: "makes embeddings of images",
    ModelKind.SEQ2SEQ: "translates or rewrites text",
}


@dataclass(frozen=True, kw_only=True)
class OutputSizes:
    """The most bytes, as JSON in UTF-8, that parts of a model's answers have; 0: it makes none of these."""

    token: int = 0  # a token's text
    logprob: int = 0  # a token with its log-probability and its bytes, as chats show it
    label: int = 0  # a label with its score
    labels: int = 0  # all of them


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that a worker can serve. Its id is a hub id, or the last part of its path."""

    id: str
    kind: ModelKind
    revision: str  # a hub revision, or a digest of the weights
    context_length: int | None = None  # tokens: prompt and output together; None: it was never loaded
    dtype: str | None = None  # type of its computation, such as bfloat16; None: not known
    dimensions: int | None = None  # size of its vectors; None: it makes none
    output_sizes: OutputSizes | None = None  # None: not known
    created_at: datetime | None = None  # first registered
    position: int = 0  # place in the worker's list; GET /v1/models keeps this order
    parent: str | None = None  # the model that an adapter changes; None: it is no adapter
