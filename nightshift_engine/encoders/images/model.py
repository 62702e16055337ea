"""A Hugging Face model of images as a function from pixels to scores or vectors.

Loading tries that an image's answer depends on that image alone, whatever it is batched with.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel, AutoModelForImageClassification

from ...checkpoint.files import brings_own_code, local_directory, read_object
from ...checkpoint.kinds import IMAGE_CLASSIFIER, IMAGE_ENCODER, Kind, require_kind
from ...errors import UnsupportedModel
from ...execution.packed_layers import NOT_PACKED
from ...loading.weights import (
    check_all_used,
    load_checkpoint,
    resolve_device,
    resolve_dtype,
    weight_not_finite,
)
from ..scoring.labels import Labels
from .decoding import decode
from .packed_layers import swap
from .preprocessing import Pixels, Preprocessor, tokens_of

log = logging.getLogger(__name__)


CPU_IMAGES_PER_PASS = 4
"""More activations than those of about 800 tokens no longer fit the cache."""
GPU_IMAGES_PER_PASS = 128

_TOLERANCE = {torch.float32: 1e-4}
_TOLERANCE_HALF = 5e-2
"""Tolerance by the norm: outputs agree to 1e-6 in float32; a model that sees other images differs visibly."""


class ImageModel:
    """A loaded model with its preprocessor. Not thread-safe but for `prepare`."""

    kind: Kind

    def __init__(self, model: Any, preprocessor: Preprocessor, path: Path) -> None:
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.max_length = tokens_of(preprocessor.shape)
        images = CPU_IMAGES_PER_PASS if model.device.type == "cpu" else GPU_IMAGES_PER_PASS
        self.max_num_batched_tokens = images * self.max_length
        self.image_bytes = preprocessor.num_bytes
        self._model = model
        self._preprocessor = preprocessor
        self.num_outputs = self._check_batching(str(path))
        self._pack()

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        dtype: str = "auto",
        device: str = "auto",
        revision: str | None = None,
    ) -> Self:
        """Loads a directory or a hub id; parameters are as in EngineConfig.

        Raises ModelLoadFailed, UnsupportedModel or InvalidConfig.
        """
        directory = local_directory(str(path_or_id), revision)
        require_kind(str(directory), None, cls.kind)
        preprocessor = Preprocessor.load(directory)
        return cls(_load_weights(directory, dtype, resolve_device(device), cls.kind), preprocessor, directory)

    def prepare(self, data: bytes) -> Pixels:
        """The bytes of an image file as the model takes them. Raises `InvalidRequest`."""
        return self._preprocessor.pixels(decode(data))

    def objection(self, input: Pixels) -> str | None:
        """The reason why an input cannot be computed."""
        return None if input.values.shape == self._preprocessor.shape else "has another shape"

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Pixels]) -> NDArray[np.float32]:
        """float32 [images, outputs]."""
        values = torch.from_numpy(np.stack([image.values for image in inputs]))
        outputs: NDArray[np.float32] = self._forward(values).cpu().numpy()
        return outputs

    def _forward(self, values: Tensor) -> Tensor:
        """float32 [images, outputs], of [images, channels, height, width]."""
        values = values.to(device=self._model.device, dtype=self._model.dtype)
        return self._outputs(self._model(pixel_values=values)).float()

    @abstractmethod
    def _outputs(self, output: Any) -> Tensor:
        """`[images, outputs]`, from what transformers returns."""

    @torch.inference_mode()
    def _pack(self) -> None:
        """Runs packed layers from now on, where there are some that compute the same; at best with a last one
        that computes first tokens alone, which is what most models read.
        """
        values = torch.from_numpy(_noise(2, self._preprocessor.shape))
        expected = self._forward(values)
        for reads_first in (True, False):
            if not (swapped := swap(self._model, reads_first=reads_first)):
                return
            try:
                difference = float((self._forward(values) - expected).norm() / expected.norm())
            except NOT_PACKED as error:
                log.debug("packed layers cannot be run: %r", error)
                difference = math.inf
            if difference <= _TOLERANCE.get(self._model.dtype, _TOLERANCE_HALF):
                swapped.keep()
                return
            swapped.undo()
        log.warning("packed layers differ by %.1e and are not used", difference)

    @torch.inference_mode()
    def _check_batching(self, name: str) -> int:
        """The number of outputs. Raises UnsupportedModel where other images change them."""
        if weight := weight_not_finite(self._model):
            raise UnsupportedModel(name, f"its weight {weight} has NaN or infinite values")
        values = torch.from_numpy(_noise(3, self._preprocessor.shape))
        try:
            alone, beside = self._forward(values[:1]), self._forward(values)[:1]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(self._model).__name__} gives no outputs: {type(error).__name__}: {error}"
            raise UnsupportedModel(name, reason) from error
        if alone.ndim != 2:
            raise UnsupportedModel(name, f"its output for an image has the shape {tuple(alone.shape[1:])}")
        difference = float((beside - alone).norm() / max(1.0, float(alone.norm())))
        if not difference <= _TOLERANCE.get(self._model.dtype, _TOLERANCE_HALF):
            raise UnsupportedModel(name, f"batching changes its outputs, by {difference:.1e}")
        return int(alone.shape[1])


class ImageClassifierModel(ImageModel):
    """A score for each label."""

    kind = IMAGE_CLASSIFIER

    def __init__(self, model: Any, preprocessor: Preprocessor, path: Path) -> None:
        super().__init__(model, preprocessor, path)
        self.labels = Labels.read(read_object(path / "config.json", str(path)), self.num_outputs, str(path))

    def _outputs(self, output: Any) -> Tensor:
        logits: Tensor = output.logits
        return logits


class ImageEncoderModel(ImageModel):
    """A vector for each image: transformers' projected or pooled output, as it is."""

    kind = IMAGE_ENCODER

    @property
    def dimensions(self) -> int:
        return self.num_outputs

    def _outputs(self, output: Any) -> Tensor:
        projected = getattr(output, "image_embeds", None)
        pooled: Tensor = output.pooler_output if projected is None else projected
        return pooled.flatten(1)  # ResNet's has a height and a width of 1


def _noise(images: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(images, *shape)).astype(np.float32)


def _load_weights(directory: Path, dtype: str, device: torch.device, kind: Kind) -> Any:
    name = str(directory)
    if brings_own_code(directory) or brings_own_code(directory, "AutoModelForImageClassification"):
        raise UnsupportedModel(name, "its files bring code of their own (auto_map), which is not run")
    loaded = load_checkpoint(
        directory,
        AutoModelForImageClassification if kind is IMAGE_CLASSIFIER else AutoModel,
        lambda config: resolve_dtype(dtype, config.dtype, device),
        name=name,
        class_of=lambda config: getattr(transformers, config.architectures[0]),  # one that the kind knows
    )
    check_all_used(loaded, kind, name)
    return loaded.model.to(device).eval()
