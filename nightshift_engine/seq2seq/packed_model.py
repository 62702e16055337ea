"""Which encoder-decoders are computed by our own kernels, and how they are packed."""

from __future__ import annotations

from typing import Any

import torch

from ..checkpoint.kinds.seq2seq_types import T5_TYPES
from ..execution.attention.input_attention import InputAttention
from ..execution.decoder.kernels import DecoderKernels
from ..execution.decoder.native_operations import DTYPES
from ..execution.device.mapped_files import MappedFiles
from ..execution.linears.activations import activation_of
from ..execution.linears.interface import Packing
from ..execution.packed_modules import free
from .packed_decoder import PackedDecoder
from .packed_encoder import PackedEncoder


def can_be_packed(model: Any) -> bool:
    """Whether a transformers model on a CPU has BART's architecture, and this machine the kernels for it."""
    if model.config.model_type in T5_TYPES or model.dtype not in DTYPES:
        return False
    layers = [*model.model.encoder.layers, *model.model.decoder.layers]
    has_kernels = DecoderKernels.are_available() and InputAttention.is_available()
    return has_kernels and all(activation_of(layer.activation_fn) is not None for layer in layers)


@torch.inference_mode()
def pack_model(model: Any, packing: Packing) -> tuple[PackedEncoder, PackedDecoder]:
    """Frees the memory of the model's own linear layers, but for a head that shares its weight."""
    packed = PackedEncoder(model, packing.layers), PackedDecoder(model, packing)
    shared = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Embedding)}
    files = MappedFiles()
    for module in model.modules():
        if type(module) is torch.nn.Linear and id(module.weight) not in shared:
            free(module, files)
    return packed
