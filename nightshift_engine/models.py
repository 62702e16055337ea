"""Models of every kind: which kind a checkpoint is, what it takes of a device, and how it is loaded.

Needs torch. A new kind is a class in `checkpoint/kinds.py`, and the code here that loads it.
"""

from pathlib import Path

from .checkpoint.kinds import (
    CLASSIFIER,
    DECODER,
    ENCODER,
    IMAGE_CLASSIFIER,
    IMAGE_ENCODER,
    KINDS,
    SEQ2SEQ,
    Kind,
    is_generative_reranker,
    read_checkpoint,
    read_kind,
)
from .encoders.images.decoding import pixels_of
from .encoders.images.model import ImageClassifierModel, ImageEncoderModel, ImageModel
from .encoders.images.preprocessing import Pixels
from .encoders.model import EncoderModel
from .encoders.scoring.classifier import ClassifierModel
from .encoders.scoring.generative_reranker import GenerativeReranker
from .encoders.scoring.scorer import TextScorer
from .execution.device.devices import DeviceMemory
from .loading.footprint import Footprint, encoder_footprint, generator_footprint
from .loading.model import LoadedModel, load_model
from .loading.weights import resolve_device
from .seq2seq.decoding import DecodingRules
from .seq2seq.model import load_seq2seq, seq2seq_config
from .text.tokenizer import Tokenizer

__all__ = [
    "CLASSIFIER",
    "DECODER",
    "ENCODER",
    "IMAGE_CLASSIFIER",
    "IMAGE_ENCODER",
    "KINDS",
    "SEQ2SEQ",
    "DecodingRules",
    "DeviceMemory",
    "EncoderModel",
    "Footprint",
    "ImageClassifierModel",
    "ImageEncoderModel",
    "ImageModel",
    "Kind",
    "LoadedModel",
    "Pixels",
    "TextScorer",
    "Tokenizer",
    "encoder_footprint",
    "generator_footprint",
    "load_model",
    "load_scorer",
    "load_seq2seq",
    "pixels_of",
    "read_kind",
    "resolve_device",
    "seq2seq_config",
]


def load_scorer(
    directory: str | Path, dtype: str = "auto", device: str = "auto", max_length: int | None = None
) -> TextScorer:
    """Loads a classifier, or a decoder that ranks texts; raises as `EncoderModel.load` does."""
    if is_generative_reranker(read_checkpoint(str(directory))):
        return GenerativeReranker.load(directory, dtype, device, max_length)
    return ClassifierModel.load(directory, dtype, device, max_length)
