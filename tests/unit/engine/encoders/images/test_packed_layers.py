"""Packed layers stand in for those of vision transformers, and compute the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nightshift_engine.encoders.images import packed_layers
from nightshift_engine.encoders.images.model import ImageClassifierModel, ImageEncoderModel
from nightshift_engine.encoders.images.packed_layers import PackedImageLayers, swap
from tests.unit.engine.tiny.images import as_bytes, picture, save_image_model


def loaded(directory: Path, family: str, head: str = "ForImageClassification") -> Any:
    save_image_model(directory, family, head)
    return getattr(transformers, f"{family}{head}").from_pretrained(directory).eval()


def num_packed(model: Any) -> int:
    return sum(isinstance(module, PackedImageLayers) for module in model.modules())


@pytest.mark.parametrize(
    ("family", "head", "has_kernels"),
    [
        ("ViT", "ForImageClassification", True),
        ("ViT", "ForImageClassification", False),
        ("DeiT", "ForImageClassification", True),
        ("CLIPVision", "Model", True),
    ],
)
def test_packed_layers_give_the_outputs_of_those_they_replace(
    tmp_path: Path, family: str, head: str, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels:
        monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")
    model = loaded(tmp_path, family, head)
    pixels = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        expected = model(pixel_values=pixels)[0]
        swapped = swap(model)
        assert num_packed(model) == 1
        swapped_out = model(pixel_values=pixels)[0]
        swapped.keep()
        kept = model(pixel_values=pixels)[0]
    torch.testing.assert_close(swapped_out, expected, atol=2e-5, rtol=1e-4)
    assert torch.equal(kept, swapped_out), "the memory that was given up is not used"


@pytest.mark.parametrize(("family", "head"), [("ViT", "ForImageClassification"), ("CLIPVision", "Model")])
def test_a_model_that_reads_first_tokens_gets_no_others_of_the_last_layer(
    tmp_path: Path, family: str, head: str
) -> None:
    model = loaded(tmp_path, family, head)
    pixels = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        answer = model(pixel_values=pixels)
        swap(model, reads_first=True)
        output = model(pixel_values=pixels)
        [packed] = [module for module in model.modules() if isinstance(module, PackedImageLayers)]
        tokens = packed(torch.randn(3, 17, 32))
    assert tokens.shape == (3, 1, 32)
    values_of = (
        (lambda output: output.logits) if "Classification" in head else (lambda output: output.pooler_output)
    )
    torch.testing.assert_close(values_of(output), values_of(answer), atol=2e-5, rtol=1e-4)


def test_a_model_that_reads_more_than_first_tokens_gets_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image_model(tmp_path, "CLIPVision", "Model")
    monkeypatch.setattr(ImageEncoderModel, "_outputs", lambda self, output: output.last_hidden_state.mean(1))
    data = as_bytes(picture(1))
    plain = transformers.CLIPVisionModel.from_pretrained(tmp_path).eval()

    model = ImageEncoderModel.load(tmp_path, "float32", "cpu")

    assert num_packed(model._model) == 1
    pixels = model.prepare(data)
    with torch.inference_mode():
        expected = plain(pixel_values=torch.from_numpy(pixels.values)[None]).last_hidden_state.mean(1)
    torch.testing.assert_close(torch.from_numpy(model.encode([pixels])), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["Dinov2", "Swin", "ConvNext", "ResNet"])
def test_layers_with_other_parts_stay(tmp_path: Path, family: str) -> None:
    """DINOv2's scale what they add, Swin's attend in windows."""
    model = loaded(tmp_path, family)
    assert not swap(model)
    assert num_packed(model) == 0


def test_layers_that_compute_something_else_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image_model(tmp_path, "ViT")
    data = as_bytes(picture(1))
    own = ImageClassifierModel.load(tmp_path, "float32", "cpu")
    expected = own.encode([own.prepare(data)])
    monkeypatch.setattr(
        PackedImageLayers, "forward", lambda self, hidden_states, *args, **others: hidden_states
    )
    other = ImageClassifierModel.load(tmp_path, "float32", "cpu")
    torch.testing.assert_close(
        torch.from_numpy(other.encode([other.prepare(data)])),
        torch.from_numpy(expected),
        atol=2e-5,
        rtol=1e-4,
    )


def test_layers_in_half_precision_are_packed_too(tmp_path: Path) -> None:
    save_image_model(tmp_path, "ViT")
    exact = ImageClassifierModel.load(tmp_path, "float32", "cpu")
    half = ImageClassifierModel.load(tmp_path, "bfloat16", "cpu")
    data = as_bytes(picture(1))
    rounded, expected = half.encode([half.prepare(data)]), exact.encode([exact.prepare(data)])
    assert half.dtype == "bfloat16"
    assert abs(rounded - expected).max() < 0.05 * abs(expected).max()


def test_where_no_kernel_is_layers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*shape: Any) -> Any:
        raise LookupError("there is no kernel")

    monkeypatch.setattr(packed_layers, "fastest_pack", none)
    assert not swap(loaded(tmp_path, "ViT"))
