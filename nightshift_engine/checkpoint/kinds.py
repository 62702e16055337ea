"""The kinds of model that are served. Architecture and files decide which one a checkpoint is."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_IMAGE_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from ..errors import ModelLoadFailed, UnsupportedModel
from .configuration import check_configuration
from .files import check_files, local_directory, read_modules, read_object
from .narrow.schemes import Scheme
from .narrow.tensors import scheme_of
from .stored_tensors import OLD_BUFFERS

TOKENIZER = ("tokenizer*", "*vocab*", "*.model", "*.tiktoken")
"""Files of which a tokenizer has at least one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as a kind recognises it, before any weight is loaded."""

    name: str
    """The name as the operator wrote it."""
    config: Any
    """The transformers configuration."""
    modules: Sequence[str] | None = None
    """Types in the modules.json of sentence-transformers, such as Pooling; None: there is no such file."""
    directory: Path | None = None
    """The files. None: only the configuration is known."""
    scheme: Scheme | None = None
    """The layout of its weights, if they are quantised."""

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
    """The kind's name in the API and in messages; the value of its ModelKind."""
    does: ClassVar[str]
    """A verb phrase for messages, after "it"."""
    serves: ClassVar[str]
    """The checkpoints that are served, for the refusal of others."""
    needs: ClassVar[tuple[str, ...]]
    """Patterns of files of which its directory has at least one."""
    needed: ClassVar[str]
    """Words for those files."""

    @abstractmethod
    def recognises(self, checkpoint: Checkpoint) -> bool:
        """Whether its configuration is of this kind. Raises `UnsupportedModel`, naming what is in the way."""

    @abstractmethod
    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Returns the weights that a model of the class `loaded_as` leaves out and that its answers need.

        With any, the checkpoint is not what its configuration says.
        """

    def missing(self, config: Any, names: Iterable[str]) -> list[str]:
        """Returns the weights that its files lack and that would be random numbers."""
        return sorted(names)

    def check_files(self, checkpoint: Checkpoint) -> None:
        """Raises `ModelLoadFailed` where a file is missing that every model of the kind has."""
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


MODULE = "LogitScore"


def is_generative_reranker(checkpoint: Checkpoint) -> bool:
    """Raises `UnsupportedModel` for one that ranks more than text."""
    if not (has_token_fields(checkpoint.config) or MODULE in (checkpoint.modules or ())):
        return False
    if checkpoint.is_encoder_decoder or type(checkpoint.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reason = (
            f"it ranks by its logits of tokens, and {checkpoint.architecture} is no decoder of text alone"
        )
        raise UnsupportedModel(checkpoint.name, reason)
    return True


def has_token_fields(config: object) -> bool:
    """Whether vLLM's fields are there; the tokens alone may be left from a conversion to another head."""
    has_method = getattr(config, "is_original_qwen3_reranker", False) or getattr(config, "method", None)
    return bool(getattr(config, "classifier_from_token", None)) and bool(has_method)


POST_NORM = ("bart", "marian")
PRE_NORM = ("mbart", "pegasus", "m2m_100")
T5_TYPES = ("t5", "mt5")
SINUSOIDAL_TYPES = ("marian", "pegasus")
"""Whose table of positions is computed, though it is a weight."""
MODEL_TYPES = (*T5_TYPES, *POST_NORM, *PRE_NORM)


_GENERATES = ("ForCausalLM", "LMHeadModel", "WithLMHead")
_FURTHER_TOKENS = re.compile(r"(^|\.)mtp(_layers|_block)?\.")
"""Multi-token prediction (Qwen3-Next, MiMo): a draft of the tokens after the next, for speculation."""


class DecoderKind(Kind):
    """A head over the vocabulary, unless the files of sentence-transformers say how it embeds."""

    name = "decoder"
    does = "generates text"
    serves = "decoders, which generate text (...ForCausalLM)"
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        architecture, config = checkpoint.architecture, checkpoint.config
        if checkpoint.is_encoder_decoder or checkpoint.has_modules or not generates(architecture, config):
            return False
        if is_generative_reranker(checkpoint):
            return False
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            reason = f"transformers loads no decoder from a configuration of {config.model_type}"
            raise UnsupportedModel(checkpoint.name, f"{reason} ({architecture})")
        return True

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Returns those of neither parts for images or sound nor layers that predict further tokens."""
        text_config = config.get_text_config()
        last: int = text_config.num_hidden_layers
        predicting = range(last, last + (getattr(text_config, "num_nextn_predict_layers", None) or 0))
        unknown = [
            name
            for name in without_old_buffers(names)
            if not _FURTHER_TOKENS.search(name)
            and not ((layer := re.search(r"\blayers\.(\d+)\.", name)) and int(layer[1]) in predicting)
        ]
        architecture = next(iter(config.architectures or ()), loaded_as)
        declared = getattr(transformers, architecture, None)
        if not unknown or declared is None or architecture == loaded_as:
            return sorted(unknown)
        return sorted(set(unknown) - set(weights_of(declared, config)))


def generates(architecture: str | None, config: Any) -> bool:
    """Whether an architecture has a head over its vocabulary for the next token of a text."""
    if architecture is None:
        return False
    if architecture.endswith(_GENERATES):
        return True
    return architecture.endswith("ForConditionalGeneration") and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


PREPROCESSOR: Final = ("preprocessor_config.json", "processor_config.json")

_CLASSIFIES_IMAGES = "ForImageClassification"
_VISION_PARTS = ("VisionModel", "VisionModelWithProjection")


class ImageClassifierKind(Kind):
    """A head over labels."""

    name = "image_classifier"
    does = "scores images"
    serves = f"classifiers of images (...{_CLASSIFIES_IMAGES})"
    needs, needed = PREPROCESSOR, "its preprocessor_config.json"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        known = _named_classes(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, checkpoint.config)
        return checkpoint.architecture in known and _CLASSIFIES_IMAGES in str(checkpoint.architecture)

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        return sorted(without_old_buffers(names))


class ImageEncoderKind(Kind):
    """A base model of images, or the vision part of one of texts and images."""

    name = "image_encoder"
    does = "makes embeddings of images"
    serves = "encoders of images (ViTModel, ConvNextModel, CLIPVisionModelWithProjection and their like)"
    needs, needed = PREPROCESSOR, "its preprocessor_config.json"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        return is_image_encoder(checkpoint)

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        return sorted(without_old_buffers(names))


def is_image_encoder(checkpoint: Checkpoint) -> bool:
    """Whether its architecture takes pixels, and has no head but a projection."""
    architecture = checkpoint.architecture
    if architecture is None or checkpoint.has_modules:
        return False
    is_base_model = architecture in _named_classes(MODEL_FOR_IMAGE_MAPPING_NAMES, checkpoint.config)
    return is_base_model or architecture.endswith(_VISION_PARTS)


def _named_classes(mapping: Mapping[str, Any], config: Any) -> set[str]:
    names = mapping.get(config.model_type)
    return {names} if isinstance(names, str) else set(names or ())


_CLASSIFIES_TEXTS = "ForSequenceClassification"


class ClassifierKind(Kind):
    """A head over labels, whatever lies beside it: it is never an embedder. Or a decoder that ranks."""

    name = "classifier"
    does = "scores text"
    serves = (
        f"classifiers and rerankers, which score it (...{_CLASSIFIES_TEXTS}, or ...ForCausalLM with the "
        "LogitScore of sentence-transformers or vLLM's classifier_from_token)"
    )
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        if is_generative_reranker(checkpoint):
            return True
        architecture = checkpoint.architecture
        if architecture is None or checkpoint.is_encoder_decoder:
            return False
        return architecture.endswith(_CLASSIFIES_TEXTS) and architecture in _classes(checkpoint.config)

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Returns all of them: scores come from the whole model."""
        return sorted(without_old_buffers(names))


def _classes(config: Any) -> set[str]:
    """Classes that transformers loads a classifier of this configuration as."""
    names = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(config.model_type)
    return {names} if isinstance(names, str) else set(names or ())


_PREDICTS = ("ForMaskedLM", "ForPreTraining")
"""Heads over the vocabulary, which an embedder may have been trained with and is saved with at times."""


class EncoderKind(Kind):
    """A base model, or a head over the vocabulary, if modules.json says how it embeds."""

    name = "encoder"
    does = "embeds text"
    serves = (
        "encoders, which embed it (...Model, or any of a vocabulary with the modules.json of "
        "sentence-transformers)"
    )
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        architecture = checkpoint.architecture
        if checkpoint.is_encoder_decoder or is_image_encoder(checkpoint):
            return False
        if is_generative_reranker(checkpoint):
            return False
        if architecture is None:
            return checkpoint.has_modules
        if architecture in _base_models():
            return True
        has_head = generates(architecture, checkpoint.config) or architecture.endswith(_PREDICTS)
        return checkpoint.has_modules and has_head

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Returns those that are no head over the vocabulary: without them, vectors would not be its own."""
        unknown = without_old_buffers(names)
        if not unknown:
            return []
        mappings = (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_PRETRAINING_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)
        classes = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
        heads = {key for with_head in classes for key in weights_of(with_head, config)}
        return sorted(set(unknown) - heads)


def _base_models() -> set[str]:
    names: set[str] = set()
    for value in MODEL_MAPPING_NAMES.values():
        names |= {value} if isinstance(value, str) else set(value)
    return {name for name in names if name.endswith(("Model", "Encoder"))}


_ARCHITECTURES = ("ForConditionalGeneration", "MarianMTModel", "T5WithLMHeadModel")


class Seq2seqKind(Kind):
    """An encoder, and a decoder that attends to its states."""

    name = "seq2seq"
    does = "translates or rewrites text"
    serves = f"encoder-decoders of text ({', '.join(MODEL_TYPES)})"
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        architecture = checkpoint.architecture
        if not checkpoint.is_encoder_decoder or checkpoint.has_modules or architecture is None:
            return False
        return checkpoint.config.model_type in MODEL_TYPES and architecture.endswith(_ARCHITECTURES)

    def missing(self, config: Any, names: Iterable[str]) -> list[str]:
        """All but sinusoids: older releases left them out of a checkpoint's files."""
        computed = "embed_positions.weight" if config.model_type in SINUSOIDAL_TYPES else ()
        return sorted(name for name in names if not name.endswith(computed))

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Returns all but sinusoids, which are computed, and embeddings that an older release saved twice."""
        computed = ("embed_positions.weight", "embed_positions.weights", "embed_tokens.weight")
        return sorted(name for name in without_old_buffers(names) if not name.endswith(computed))


DECODER, ENCODER, CLASSIFIER = DecoderKind(), EncoderKind(), ClassifierKind()
IMAGE_CLASSIFIER, IMAGE_ENCODER = ImageClassifierKind(), ImageEncoderKind()
SEQ2SEQ = Seq2seqKind()

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
"""Models that no kind could run, by `model_type`, though their architectures are named as others'."""


def read_kind(model: str, revision: str | None = None) -> Kind:
    """Reads the kind of a directory or hub id. Raises `UnsupportedModel` by name, or `ModelLoadFailed`."""
    checkpoint = read_checkpoint(model, revision)
    kind = kind_of(checkpoint)
    if checkpoint.scheme is not None and kind is not DECODER:
        reason = f"it is quantised ({checkpoint.scheme.method}), and {kind.does}"
        raise UnsupportedModel(checkpoint.name, f"{reason}; of quantised checkpoints, decoders are served")
    check_configuration(checkpoint.config, checkpoint.name)
    kind.check_files(checkpoint)
    return kind


def kind_of(checkpoint: Checkpoint) -> Kind:
    """Raises `UnsupportedModel`, naming the architecture and what would be served."""
    if other := _OTHER_INPUTS.get(checkpoint.config.model_type):
        what = checkpoint.architecture or checkpoint.config.model_type
        raise UnsupportedModel(checkpoint.name, f"{what} {other}; {_served()}")
    try:
        kinds = [kind for kind in KINDS if kind.recognises(checkpoint)]
    except UnsupportedModel as error:
        raise UnsupportedModel(checkpoint.name, f"{error.reason}; {_served()}") from error
    assert len(kinds) <= 1, f"{checkpoint.architecture} is of the kinds {[kind.name for kind in kinds]}"
    if kinds:
        return kinds[0]
    raise UnsupportedModel(checkpoint.name, f"{_what_it_is(checkpoint)}; {_served()}")


def require_kind(model: str, revision: str | None, wanted: Kind) -> None:
    """Raises `UnsupportedModel` if a checkpoint is not of the kind it is loaded as, or `ModelLoadFailed`."""
    kind = read_kind(model, revision)
    if kind is not wanted:
        reason = f"it {kind.does}, as its architecture and its modules.json say (or the lack of one)"
        raise UnsupportedModel(model, f"{reason}; it was asked for as a model that {wanted.does}")


def read_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """Reads what a directory or hub id is recognised by. Raises `UnsupportedModel` or `ModelLoadFailed`."""
    directory = local_directory(model, revision)
    check_files(directory, model)
    scheme = scheme_of(read_object(directory / "config.json", model), model)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # whatever a broken file makes of the libraries below
        raise ModelLoadFailed(f"cannot load model {model!r}: config.json: {_said(error)}") from error
    modules = read_modules(directory, model)
    kinds = None if modules is None else tuple(module.kind for module in modules)
    return Checkpoint(model, config, kinds, directory, scheme)


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
