"""Images are prepared in less time than by transformers' processors, and to the bit as by them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    BitImageProcessorPil,
    CLIPImageProcessorPil,
    ConvNextImageProcessorPil,
    DeiTImageProcessorPil,
    ViTImageProcessorPil,
)

from nightshift_engine.encoders.images.preprocessing import Preprocessor, QuickSteps
from tests.unit.engine.tiny.images import picture

SQUARE = {"height": 32, "width": 32}
SIZES = ((50, 40), (40, 50), (32, 32), (31, 200), (640, 480), (9, 7))


def saved(directory: Path, processor: Any) -> Preprocessor:
    processor.save_pretrained(directory)
    return Preprocessor.load(directory)


@pytest.mark.parametrize(
    "processor",
    [
        ViTImageProcessorPil(size=SQUARE),
        ViTImageProcessorPil(size=SQUARE, resample=3, image_mean=[0.1, 0.2, 0.3], image_std=[0.9, 0.7, 0.5]),
        ViTImageProcessorPil(size={"height": 24, "width": 40}),
        ViTImageProcessorPil(size=SQUARE, do_normalize=False),
        ViTImageProcessorPil(size=SQUARE, do_rescale=False),
        ViTImageProcessorPil(size=SQUARE, rescale_factor=0.01),
        DeiTImageProcessorPil(size={"height": 40, "width": 40}, crop_size=SQUARE),
        BitImageProcessorPil(size={"shortest_edge": 32}, crop_size=SQUARE),
        ConvNextImageProcessorPil(size={"shortest_edge": 32}),
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SQUARE),
    ],
)
def test_an_image_is_what_its_processor_makes_of_it_alone(tmp_path: Path, processor: Any) -> None:
    preprocessor = saved(tmp_path, processor)
    assert preprocessor._quick is not None
    for number, size in enumerate(SIZES):
        image = picture(number, *size)
        expected = processor(images=[image], return_tensors="np")["pixel_values"][0]
        values = preprocessor.pixels(image).values
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, expected.astype(np.float32))


def test_a_processor_that_does_something_else_to_pixels_prepares_them_itself(tmp_path: Path) -> None:
    class Equalizing(ViTImageProcessorPil):
        def normalize(self, image: Any, mean: Any, std: Any, **others: Any) -> Any:
            return super().normalize(image, mean, std, **others) / (1 + np.abs(image).max())

    processor = Equalizing(size=SQUARE)
    assert QuickSteps.of_processor(processor) is None
    preprocessor = Preprocessor(processor, "equalizing")
    image = picture(3)
    expected = processor(images=[image], return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(preprocessor.pixels(image).values, expected.astype(np.float32))


def test_a_resize_other_than_pillows_is_left_to_the_processor(tmp_path: Path) -> None:
    class Nearest(ViTImageProcessorPil):
        def resize(self, image: Any, size: Any, resample: Any = None, **others: Any) -> Any:
            return super().resize(image, size, resample=0, **others)

    processor = Nearest(size=SQUARE)
    quick = QuickSteps.of_processor(processor)
    assert quick is not None
    image = picture(4, 60, 90)
    expected = processor(images=[image], return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(quick(image), expected.astype(np.float32))
