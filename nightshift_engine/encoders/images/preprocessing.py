"""Images as a model takes them: what transformers' own Pillow processor makes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor

from ...checkpoint.files import unreadable
from ...errors import InvalidRequest, ModelLoadFailed, UnsupportedModel

log = logging.getLogger(__name__)


Make = Callable[[Image.Image], NDArray[np.float32]]
"""`[channels, height, width]` of an RGB image."""

_NOISE_SIZES: Final = ((64, 48), (37, 90), (301, 280), (640, 427), (225, 1000), (224, 224))
_VALUES: Final = 256  # of a channel of a pixel


def made_by(processor: Any) -> Make:
    """Makes pixels by the processor as it is."""

    def make(image: Image.Image) -> NDArray[np.float32]:
        made = processor(images=[image], return_tensors="np")["pixel_values"]
        return np.ascontiguousarray(made[0], dtype=np.float32)

    return make


class QuickSteps:
    """Resizes and crops, then looks values up in a table: the bits of the processor in less time."""

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
    def of_processor(cls, processor: Any) -> QuickSteps | None:
        """The quick steps of a processor. None where they do not give the processor's own bits."""
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
        pixels: NDArray[np.uint8] = made["pixel_values"][0]
        if pixels.dtype != np.uint8:
            raise ValueError(f"its processor makes {pixels.dtype} of pixel values")
        return pixels


def _noise() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [
        Image.fromarray(draw.integers(0, _VALUES, (height, width, 3), np.uint8))
        for width, height in _NOISE_SIZES
    ]


PIXELS_PER_TOKEN: Final = 16 * 16
"""Pixels per token of an image's cost: a patch of a ViT of the usual kind, whatever the model's own are."""

_TRIED_SIZES: Final = ((64, 48), (37, 90))  # of different shapes


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """One image, ready for its model."""

    values: NDArray[np.float32]  # [channels, height, width]

    def __len__(self) -> int:
        """The cost of the image, in tokens."""
        return tokens_of(self.values.shape)


def tokens_of(shape: tuple[int, ...]) -> int:
    return max(1, shape[-1] * shape[-2] // PIXELS_PER_TOKEN)


class Preprocessor:
    """Resizes, crops and normalises as preprocessor_config.json says. Thread-safe."""

    def __init__(self, processor: Any, name: str) -> None:
        """Raises UnsupportedModel where it makes images of more than one size: they could not be batched."""
        self._processor = processor
        self._quick: QuickSteps | None = None
        try:
            tried = [self.pixels(Image.new("RGB", size)).values for size in _TRIED_SIZES]
        except Exception as error:  # whatever a configuration makes of the library
            reason = f"its image processor cannot be run: {type(error).__name__}: {error}"
            raise UnsupportedModel(name, reason) from error
        shapes = {values.shape for values in tried}
        if not all(np.isfinite(values).all() for values in tried):  # of an image_std of 0
            raise UnsupportedModel(name, "its image processor makes values that are no finite numbers")
        if len(shapes) > 1 or len(next(iter(shapes))) != 3:
            raise UnsupportedModel(name, f"its image processor makes images of several shapes: {shapes}")
        self.shape: tuple[int, ...] = next(iter(shapes))
        self._quick = QuickSteps.of_processor(processor)

    @classmethod
    def load(cls, directory: Path) -> Preprocessor:
        """Loads the processor of a checkpoint's directory. Raises ModelLoadFailed or UnsupportedModel."""
        name = str(directory)
        try:
            processor = AutoImageProcessor.from_pretrained(directory, backend="pil", trust_remote_code=False)
        except Exception as error:  # as above
            reason = unreadable(directory) or f"{type(error).__name__}: {error}"
            raise ModelLoadFailed(f"cannot load the image processor of {name!r}: {reason}") from error
        return cls(processor, name)

    @property
    def num_bytes(self) -> int:
        """Bytes that a prepared image takes."""
        return int(np.prod(self.shape)) * np.dtype(np.float32).itemsize

    def pixels(self, image: Image.Image) -> Pixels:
        """The pixels of an RGB image. Raises InvalidRequest."""
        try:
            make = made_by(self._processor) if self._quick is None else self._quick
            return Pixels(make(image))
        except (ValueError, OverflowError, MemoryError, ZeroDivisionError) as error:
            size = f"{image.width} x {image.height}"
            raise InvalidRequest(f"of {size} pixels cannot be prepared for the model: {error}") from error
