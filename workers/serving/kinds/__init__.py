"""The kinds of model that a worker serves: for each kind of the engine, how it is loaded and served."""

from typing import Final

from nightshift_engine.checkpoint.kinds import Kind
from workers.serving.kinds.classifier import Classifiers
from workers.serving.kinds.decoder import Decoders
from workers.serving.kinds.encoder import Encoders
from workers.serving.kinds.images import ImageClassifiers, ImageEncoders
from workers.serving.kinds.kind import ServedKind
from workers.serving.kinds.seq2seq import Seq2seqModels

SERVED_KINDS: Final[tuple[ServedKind, ...]] = (
    Decoders(),
    Encoders(),
    Classifiers(),
    ImageClassifiers(),
    ImageEncoders(),
    Seq2seqModels(),
)

_BY_KIND: Final = {each.kind: each for each in SERVED_KINDS}


def serving(kind: Kind) -> ServedKind:
    """What serves the checkpoints of a kind."""
    return _BY_KIND[kind]
