"""Small random models of images with their processors, and images as files."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, PretrainedConfig

SIDE = 32
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_CONFIGS: dict[str, dict[str, Any]] = {
    "ViT": _LAYERS | {"image_size": SIDE, "patch_size": 8},
    "DeiT": _LAYERS | {"image_size": SIDE, "patch_size": 8},
    "Dinov2": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": 8,
    },
    "Swin": {
        "image_size": SIDE,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 4,
    },
    "ConvNext": _STAGES,
    "ResNet": _STAGES | {"embedding_size": 8, "layer_type": "basic"},
    "CLIPVision": _LAYERS | {"image_size": SIDE, "patch_size": 8, "projection_dim": 16},
}
_SQUARE = {"height": SIDE, "width": SIDE}
_PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViTImageProcessorPil", {"size": _SQUARE}),
    "Swin": ("ViTImageProcessorPil", {"size": _SQUARE}),
    "DeiT": ("DeiTImageProcessorPil", {"size": {"height": 40, "width": 40}, "crop_size": _SQUARE}),
    "Dinov2": ("BitImageProcessorPil", {"size": {"shortest_edge": SIDE}, "crop_size": _SQUARE}),
    "ConvNext": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": SIDE}}),
    "ResNet": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": SIDE}}),
    "CLIPVision": ("CLIPImageProcessorPil", {"size": {"shortest_edge": SIDE}, "crop_size": _SQUARE}),
}


def save_image_model(
    directory: Path, family: str, head: str = "ForImageClassification", **config: Any
) -> Path:
    """A checkpoint such as ViTForImageClassification, with random weights, also of its norms."""
    made: PretrainedConfig = getattr(transformers, f"{family}Config")(**(_CONFIGS[family] | config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = getattr(transformers, f"{family}{head}")(made).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name.lower():
                parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    name, options = _PROCESSORS[family]
    getattr(transformers, name)(**options).save_pretrained(directory)
    return directory


def picture(number: int, width: int = 50, height: int = 40) -> Image.Image:
    values = np.random.default_rng(number).integers(0, 256, (height // 5, width // 5, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def as_bytes(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def reference(directory: Path, images: list[Image.Image]) -> NDArray[np.float32]:
    """Output of transformers alone for each image by itself."""
    config = transformers.AutoConfig.from_pretrained(directory)
    model = getattr(transformers, config.architectures[0]).from_pretrained(directory, dtype="float32").eval()
    processor = AutoImageProcessor.from_pretrained(directory, backend="pil")
    outputs = []
    for image in images:
        pixels = torch.from_numpy(
            processor(images=[image.convert("RGB")], return_tensors="np")["pixel_values"]
        )
        with torch.inference_mode():
            output = model(pixel_values=pixels)
        for name in ("logits", "image_embeds", "pooler_output"):
            if name in output:
                outputs.append(output[name][0].flatten().numpy())
                break
    return np.stack(outputs)
