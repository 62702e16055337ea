"""Packed layers stand in for those of vision transformers, and compute the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.unit.workers.engine.images.tiny_images import as_bytes, picture, save_image_model
from workers.engine.images import packed_layers
from workers.engine.images.model import ImageClassifierModel
from workers.engine.images.packed_layers import PackedLayer, swap


def loaded(directory: Path, family: str, head: str = "ForImageClassification") -> Any:
    save_image_model(directory, family, head)
    return getattr(transformers, f"{family}{head}").from_pretrained(directory).eval()


def num_packed(model: Any) -> int:
    return sum(isinstance(each, PackedLayer) for each in model.modules())


@pytest.mark.parametrize(
    ("family", "head"),
    [("ViT", "ForImageClassification"), ("DeiT", "ForImageClassification"), ("CLIPVision", "Model")],
)
def test_packed_layers_give_the_outputs_of_those_they_replace(tmp_path: Path, family: str, head: str) -> None:
    model = loaded(tmp_path, family, head)
    pixels = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        expected = model(pixel_values=pixels)[0]
        swapped = swap(model)
        assert num_packed(model) == 2
        found = model(pixel_values=pixels)[0]
        swapped.keep()
        kept = model(pixel_values=pixels)[0]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert torch.equal(kept, found), "the memory that was given up is not used"


@pytest.mark.parametrize("family", ["Dinov2", "Swin", "ConvNext", "ResNet"])
def test_layers_with_other_parts_stay(tmp_path: Path, family: str) -> None:
    """DINOv2's scale what they add, Swin's attend in windows."""
    model = loaded(tmp_path, family)
    assert not swap(model)
    assert num_packed(model) == 0


def test_layers_are_put_back(tmp_path: Path) -> None:
    model = loaded(tmp_path, "ViT")
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model(pixel_values=pixels)[0]
        swap(model).undo()
        assert num_packed(model) == 0
        assert torch.equal(model(pixel_values=pixels)[0], expected)


def test_layers_that_compute_something_else_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image_model(tmp_path, "ViT")
    data = as_bytes(picture(1))
    own = ImageClassifierModel.load(tmp_path, "float32", "cpu")
    expected = own.encode([own.prepare(data)])
    monkeypatch.setattr(PackedLayer, "forward", lambda self, hidden_states, *args, **others: hidden_states)
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
    found, expected = half.encode([half.prepare(data)]), exact.encode([exact.prepare(data)])
    assert half.dtype == "bfloat16"
    assert abs(found - expected).max() < 0.05 * abs(expected).max()


def test_where_no_kernel_is_layers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*shape: Any) -> Any:
        raise LookupError("there is no kernel")

    monkeypatch.setattr(packed_layers, "fastest_pack", none)
    assert not swap(loaded(tmp_path, "ViT"))
