"""Images as a model takes them: what transformers' own Pillow processor makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor

from ..checkpoint.files import unreadable
from ..errors import InvalidRequest, ModelLoadFailed, UnsupportedModel
from .quick_steps import QuickSteps, made_by

PIXELS_PER_TOKEN: Final = 16 * 16
"""What an image costs: a token for each patch of a ViT of the usual kind, whatever the model's own are."""

_TRIED_SIZES: Final = ((64, 48), (37, 90))  # of different shapes


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """One image, ready for its model."""

    values: NDArray[np.float32]  # [channels, height, width]

    def __len__(self) -> int:
        """What it costs, in tokens."""
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
        self._quick = QuickSteps.of(processor)

    @classmethod
    def load(cls, directory: Path) -> Preprocessor:
        """Of a checkpoint's directory. Raises ModelLoadFailed or UnsupportedModel."""
        name = str(directory)
        try:
            processor = AutoImageProcessor.from_pretrained(directory, backend="pil", trust_remote_code=False)
        except Exception as error:  # as above
            reason = unreadable(directory) or f"{type(error).__name__}: {error}"
            raise ModelLoadFailed(f"cannot load the image processor of {name!r}: {reason}") from error
        return cls(processor, name)

    @property
    def num_bytes(self) -> int:
        """That a prepared image takes."""
        return int(np.prod(self.shape)) * np.dtype(np.float32).itemsize

    def pixels(self, image: Image.Image) -> Pixels:
        """Of an RGB image. Raises InvalidRequest."""
        try:
            make = made_by(self._processor) if self._quick is None else self._quick
            return Pixels(make(image))
        except (ValueError, OverflowError, MemoryError, ZeroDivisionError) as error:
            size = f"{image.width} x {image.height}"
            raise InvalidRequest(f"of {size} pixels cannot be prepared for the model: {error}") from error
