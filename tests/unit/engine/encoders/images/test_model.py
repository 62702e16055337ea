"""Models of images give what transformers gives, alone and batched."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightshift_engine.checkpoint.kinds import CLASSIFIER, IMAGE_CLASSIFIER, IMAGE_ENCODER, read_kind
from nightshift_engine.encoders.images.model import ImageClassifierModel, ImageEncoderModel
from nightshift_engine.errors import EngineError, ModelLoadFailed
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.images import as_bytes, picture, reference, save_image_model

TOLERANCE = 2e-5
CLASSIFIERS = ["ViT", "DeiT", "Swin", "ConvNext", "ResNet", "Dinov2"]
ENCODERS = [
    ("CLIPVision", "ModelWithProjection"),
    ("CLIPVision", "Model"),
    *[(family, "Model") for family in CLASSIFIERS],
]
PICTURES = [
    picture(number, width, height) for number, (width, height) in enumerate([(50, 40), (33, 90), (32, 32)])
]


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_logits_are_those_of_transformers_alone_and_batched(tmp_path: Path, family: str) -> None:
    save_image_model(tmp_path, family, num_labels=5)
    model = ImageClassifierModel.load(tmp_path, "float32", "cpu")
    inputs = [model.prepare(as_bytes(image)) for image in PICTURES]

    expected = reference(tmp_path, PICTURES)
    assert np.abs(expected[0] - expected[1]).max() > 100 * TOLERANCE, "the images differ visibly"
    np.testing.assert_allclose(model.encode(inputs), expected, atol=TOLERANCE, rtol=1e-4)
    alone = np.concatenate([model.encode([input]) for input in inputs])
    np.testing.assert_allclose(alone, expected, atol=TOLERANCE, rtol=1e-4)
    assert model.labels.names == tuple(f"LABEL_{index}" for index in range(5))
    assert read_kind(str(tmp_path)) is IMAGE_CLASSIFIER is not CLASSIFIER


@pytest.mark.parametrize(
    ("family", "head"), mostly_exhaustive(ENCODERS, default=[*ENCODERS[:3], ENCODERS[-1]])
)
def test_vectors_are_the_pooled_output_of_transformers(tmp_path: Path, family: str, head: str) -> None:
    save_image_model(tmp_path, family, head)
    model = ImageEncoderModel.load(tmp_path, "float32", "cpu")
    inputs = [model.prepare(as_bytes(image)) for image in PICTURES]

    expected = reference(tmp_path, PICTURES)
    np.testing.assert_allclose(model.encode(inputs), expected, atol=TOLERANCE, rtol=1e-4)
    assert model.dimensions == expected.shape[1]
    assert read_kind(str(tmp_path)) is IMAGE_ENCODER


REFUSED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "no pooler": (ImageEncoderModel, "config.json", {"architectures": ["ViTModel"]}, "pooler"),
    "a gap among labels": (
        ImageClassifierModel,
        "config.json",
        {"id2label": {"0": "a", "2": "b", "3": "c"}},
        "id2label",
    ),
    "code of its own": (
        ImageClassifierModel,
        "config.json",
        {"auto_map": {"AutoModelForImageClassification": "code.Model"}},
        "auto_map",
    ),
    "several sizes": (
        ImageClassifierModel,
        "preprocessor_config.json",
        {"do_resize": False},
        "several shapes",
    ),
    "a division by zero": (
        ImageClassifierModel,
        "preprocessor_config.json",
        {"image_std": [0, 0, 0]},
        "no finite numbers",
    ),
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_computed_wrongly_is_refused_by_name(tmp_path: Path, name: str) -> None:
    model_class, file, fields, reason = REFUSED[name]
    save_image_model(tmp_path, "ViT", num_labels=3)
    path = tmp_path / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    with pytest.raises(EngineError, match=reason):
        model_class.load(tmp_path)


def test_a_checkpoint_without_its_preprocessor_is_refused_by_name(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ModelLoadFailed, match=r"preprocessor_config\.json is missing"):
        ImageClassifierModel.load(tmp_path)
