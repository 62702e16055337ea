"""Models of images give what transformers gives, alone and batched."""

import json
from pathlib import Path

import numpy as np
import pytest

from nightshift_engine.checkpoint.kinds import CLASSIFIER, IMAGE_CLASSIFIER, IMAGE_ENCODER, read_kind
from nightshift_engine.encoders.images.model import ImageClassifierModel, ImageEncoderModel
from nightshift_engine.errors import EngineError, ModelLoadFailed, UnsupportedModel
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


@pytest.mark.parametrize(("family", "head"), ENCODERS)
def test_vectors_are_the_pooled_output_of_transformers(tmp_path: Path, family: str, head: str) -> None:
    save_image_model(tmp_path, family, head)
    model = ImageEncoderModel.load(tmp_path, "float32", "cpu")
    inputs = [model.prepare(as_bytes(image)) for image in PICTURES]

    expected = reference(tmp_path, PICTURES)
    np.testing.assert_allclose(model.encode(inputs), expected, atol=TOLERANCE, rtol=1e-4)
    assert model.dimensions == expected.shape[1]
    assert read_kind(str(tmp_path)) is IMAGE_ENCODER


def test_a_classifier_of_images_is_not_one_of_texts(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    assert read_kind(str(tmp_path)) is IMAGE_CLASSIFIER is not CLASSIFIER


def test_a_checkpoint_without_its_preprocessor_is_refused_by_name(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ModelLoadFailed, match=r"preprocessor_config\.json is missing"):
        ImageClassifierModel.load(tmp_path)


def test_a_checkpoint_without_a_pooler_is_refused_rather_than_filled_with_random_numbers(
    tmp_path: Path,
) -> None:
    save_image_model(tmp_path, "ViT")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["ViTModel"]}))
    with pytest.raises(EngineError, match="pooler"):
        ImageEncoderModel.load(tmp_path)


def test_a_label_map_with_gaps_is_refused(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT", num_labels=3)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {"0": "a", "2": "b", "3": "c"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="id2label"):
        ImageClassifierModel.load(tmp_path)


def test_code_of_the_checkpoints_own_is_refused(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForImageClassification": "code.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="auto_map"):
        ImageClassifierModel.load(tmp_path)


def test_a_processor_that_makes_images_of_several_sizes_is_refused(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_resize": False}))
    with pytest.raises(UnsupportedModel, match="several shapes"):
        ImageClassifierModel.load(tmp_path)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_processor_that_divides_by_zero_is_refused(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_std": [0, 0, 0]}))
    with pytest.raises(UnsupportedModel, match="no finite numbers"):
        ImageClassifierModel.load(tmp_path)
