"""What transformers' Pillow processors make of an image, to the bit, in less time.

They resize by way of arrays, and rescale and normalise each pixel. Here Pillow resizes its own image, and a
pixel's value is looked up in a table of the 256 that it may become, which the processor itself has made. Used
only where noise of several sizes comes out the same as from the processor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

log = logging.getLogger(__name__)

Make = Callable[[Image.Image], NDArray[np.float32]]
"""`[channels, height, width]` of an RGB image."""

_TRIED_SIZES: Final = ((64, 48), (37, 90), (301, 280), (640, 427), (225, 1000), (224, 224))
_VALUES: Final = 256  # of a channel of a pixel


def made_by(processor: Any) -> Make:
    """By the processor as it is."""

    def make(image: Image.Image) -> NDArray[np.float32]:
        made = processor(images=[image], return_tensors="np")["pixel_values"]
        return np.ascontiguousarray(made[0], dtype=np.float32)

    return make


class QuickSteps:
    """Resizing and cropping to whole pixel values, then a table. Thread-safe."""

    def __init__(self, processor: Any, *, resizes_itself: bool) -> None:
        """`resizes_itself`: the processor does; else Pillow does, to the processor's height and width."""
        self._processor = processor
        size = processor.size
        self._size = None if resizes_itself else (int(size["width"]), int(size["height"]))
        self._resample = processor.resample
        values = np.arange(_VALUES, dtype=np.uint8).reshape(1, 16, 16).repeat(3, axis=0)
        made = processor(images=[values], do_resize=False, do_center_crop=False, do_pad=False,
                         input_data_format="channels_first", return_tensors="np")["pixel_values"]  # fmt: skip
        self._table = np.ascontiguousarray(made[0], dtype=np.float32).reshape(3, _VALUES)

    @classmethod
    def of(cls, processor: Any) -> QuickSteps | None:
        """None where they would not give the processor's own bits."""
        for resizes_itself in (False, True):
            try:
                quick = cls(processor, resizes_itself=resizes_itself)
                if all(np.array_equal(quick(image), made_by(processor)(image)) for image in _noise()):
                    return quick
            except Exception as error:  # noqa: BLE001 whatever a configuration makes of the library
                log.debug("images are prepared by the processor: %r", error)
        return None

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        whole = self._whole(image)
        out = np.empty(whole.shape, np.float32)
        for channel, table, into in zip(whole, self._table, out, strict=True):
            np.take(table, channel, out=into, mode="clip")  # the only mode that does not buffer
        return out

    def _whole(self, image: Image.Image) -> NDArray[np.uint8]:
        """Pixel values `[3, height, width]`, of the size that the model takes."""
        if self._size is not None:
            sized = image if image.size == self._size else image.resize(self._size, self._resample)
            return np.asarray(sized).transpose(2, 0, 1)
        made = self._processor(images=[image], do_rescale=False, do_normalize=False, return_tensors="np")
        found: NDArray[np.uint8] = made["pixel_values"][0]
        if found.dtype != np.uint8:
            raise ValueError(f"its processor makes {found.dtype} of pixel values")
        return found


def _noise() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [
        Image.fromarray(draw.integers(0, _VALUES, (height, width, 3), np.uint8))
        for width, height in _TRIED_SIZES
    ]
