"""The kinds of model that are served, and which of them a checkpoint is.

Decided here and nowhere else, by the architecture that its config.json names and by the files of
sentence-transformers beside it: the same class may generate or embed. What a library would load all the same,
as a classifier without its head, is refused by name, with what would be served.
"""

from __future__ import annotations

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from ...errors import ModelLoadFailed, UnsupportedModel
from ..configuration import check_configuration
from ..files import check_files, local_directory
from ..modules import read_modules
from .classifier import Classifier
from .decoder import Decoder
from .encoder import Encoder
from .images import ImageClassifier, ImageEncoder
from .kind import Checkpoint, Kind
from .seq2seq import Seq2seq

__all__ = [
    "CLASSIFIER",
    "DECODER",
    "ENCODER",
    "IMAGE_CLASSIFIER",
    "IMAGE_ENCODER",
    "KINDS",
    "SEQ2SEQ",
    "Checkpoint",
    "Kind",
    "kind_of",
    "read_checkpoint",
    "read_kind",
    "require_kind",
]

DECODER, ENCODER, CLASSIFIER = Decoder(), Encoder(), Classifier()
IMAGE_CLASSIFIER, IMAGE_ENCODER = ImageClassifier(), ImageEncoder()
SEQ2SEQ = Seq2seq()

KINDS: tuple[Kind, ...] = (DECODER, ENCODER, CLASSIFIER, IMAGE_CLASSIFIER, IMAGE_ENCODER, SEQ2SEQ)

_OTHER_TASKS = {
    "ForSequenceClassification": "classifies or ranks texts",
    "ForTokenClassification": "classifies tokens",
    "ForQuestionAnswering": "marks answers in a text",
    "ForMultipleChoice": "chooses among answers",
    "ForNextSentencePrediction": "judges whether a sentence follows another",
    "ForConditionalGeneration": "generates from more than text",
    "RewardModel": "rates answers",
    "ForMaskedLM": "predicts masked tokens",
    "ForPreTraining": "has the heads of its pre-training",
}

_OTHER_INPUTS = {
    "canine": "reads Unicode characters and has no vocabulary of tokens",
    "perceiver": "gives vectors of its latents, not of a text's tokens",
    "tapas": "reads a table beside each text",
}
"""By `model_type`: models that no kind could run, though their architectures are named as others'."""


def read_kind(model: str, revision: str | None = None) -> Kind:
    """The kind of a directory or hub id. Raises `UnsupportedModel` by name, or `ModelLoadFailed`."""
    checkpoint = read_checkpoint(model, revision)
    kind = kind_of(checkpoint)
    check_configuration(checkpoint.config, checkpoint.name)
    kind.check_files(checkpoint)
    return kind


def kind_of(checkpoint: Checkpoint) -> Kind:
    """Raises `UnsupportedModel`, naming the architecture and what would be served."""
    if other := _OTHER_INPUTS.get(checkpoint.config.model_type):
        what = checkpoint.architecture or checkpoint.config.model_type
        raise UnsupportedModel(checkpoint.name, f"{what} {other}; {_served()}")
    try:
        found = [kind for kind in KINDS if kind.recognises(checkpoint)]
    except UnsupportedModel as error:
        raise UnsupportedModel(checkpoint.name, f"{error.reason}; {_served()}") from error
    assert len(found) <= 1, f"{checkpoint.architecture} is of the kinds {[each.name for each in found]}"
    if found:
        return found[0]
    raise UnsupportedModel(checkpoint.name, f"{_what_it_is(checkpoint)}; {_served()}")


def require_kind(model: str, revision: str | None, wanted: Kind) -> None:
    """Raise `UnsupportedModel` if a checkpoint is not of the kind it is loaded as, or `ModelLoadFailed`."""
    found = read_kind(model, revision)
    if found is not wanted:
        reason = f"it {found.does}, as its architecture and its modules.json say (or the lack of one)"
        raise UnsupportedModel(model, f"{reason}; it was asked for as a model that {wanted.does}")


def read_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """What a directory or hub id is recognised by. Raises `UnsupportedModel` or `ModelLoadFailed`."""
    directory = local_directory(model, revision)
    check_files(directory, model)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # whatever a broken file makes of the libraries below
        raise ModelLoadFailed(f"cannot load model {model!r}: config.json: {_said(error)}") from error
    modules = read_modules(directory, model)
    kinds = None if modules is None else tuple(module.kind for module in modules)
    return Checkpoint(model, config, kinds, directory)


def _what_it_is(checkpoint: Checkpoint) -> str:
    if checkpoint.is_encoder_decoder:
        return f"{checkpoint.config.model_type} is an encoder-decoder"
    architecture = checkpoint.architecture
    if architecture is None:
        return "its config.json names no architecture"
    tasks = (task for suffix, task in _OTHER_TASKS.items() if architecture.endswith(suffix))
    return f"{architecture} {next(tasks, 'is not an architecture we know')}"


def _served() -> str:
    return f"served are {', '.join(kind.serves for kind in KINDS)}"


def _said(error: Exception) -> str:
    speaks = isinstance(error, (OSError, ValueError, StrictDataclassError))
    return str(error) if speaks and str(error) else repr(error)
