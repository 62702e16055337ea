"""The kinds of model that a worker serves: for each kind of the engine, how it is loaded and served."""

from typing import Final

from nightshift_engine.models import Kind
from workers.serving.kinds.generators import Decoders, Seq2seqModels
from workers.serving.kinds.kind import ServedKind
from workers.serving.kinds.one_pass import Classifiers, Encoders, ImageClassifiers, ImageEncoders

SERVED_KINDS: Final[tuple[ServedKind, ...]] = (
    Decoders(),
    Encoders(),
    Classifiers(),
    ImageClassifiers(),
    ImageEncoders(),
    Seq2seqModels(),
)

_BY_KIND: Final = {served.kind: served for served in SERVED_KINDS}


def serving(kind: Kind) -> ServedKind:
    """The served kind of a kind of checkpoints."""
    return _BY_KIND[kind]
