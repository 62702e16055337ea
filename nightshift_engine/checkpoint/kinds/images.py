"""Models of images: classifiers score them for each of their labels, encoders embed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_IMAGE_MAPPING_NAMES,
)

from .kind import Checkpoint, Kind, without_old_buffers

PREPROCESSOR: Final = ("preprocessor_config.json", "processor_config.json")

_CLASSIFIES = "ForImageClassification"
_VISION_PARTS = ("VisionModel", "VisionModelWithProjection")


class ImageClassifier(Kind):
    """A head over labels."""

    name = "image_classifier"
    does = "scores images"
    serves = f"classifiers of images (...{_CLASSIFIES})"
    needs, needed = PREPROCESSOR, "its preprocessor_config.json"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        known = _named(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, checkpoint.config)
        return checkpoint.architecture in known and _CLASSIFIES in str(checkpoint.architecture)

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        return sorted(without_old_buffers(names))


class ImageEncoder(Kind):
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
    is_base_model = architecture in _named(MODEL_FOR_IMAGE_MAPPING_NAMES, checkpoint.config)
    return is_base_model or architecture.endswith(_VISION_PARTS)


def _named(mapping: Mapping[str, Any], config: Any) -> set[str]:
    found = mapping.get(config.model_type)
    return {found} if isinstance(found, str) else set(found or ())
