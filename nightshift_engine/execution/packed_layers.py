"""Layers of encoders by packed linears: those of texts and images, and both sides of encoder-decoders."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LayerNorm

from .attention.input_attention import PassAttention
from .decoder.buffers import Buffers
from .decoder.kernels import DecoderKernels
from .decoder.weights import Norm
from .device.mapped_files import MappedFiles
from .linears.interface import Activation, Linear, LinearDType, Pack, activation_of
from .packed_modules import free

DTYPES: dict[torch.dtype, LinearDType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
NOT_PACKED = (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""Raised by packed layers of a model that is built otherwise: it keeps its own."""
PASS_ROWS = 256
"""Rows of the pass by which the way to compute linear layers is chosen."""


class PackedNorm:
    """A layer norm of float32 rows, or with None nothing but another dtype."""

    def __init__(self, norm: LayerNorm | None) -> None:
        self._norm = None if norm is None else _norm(norm)
        self._kernels = DecoderKernels() if DecoderKernels.are_available() else None

    def store(self, x: Tensor, out: Tensor, rows: Tensor | None = None) -> None:
        """Writes rows of `x`, float32, all or those given, to `out`, in its dtype; it may be `x`."""
        if self._kernels is not None:
            self._kernels.norm(x, rows, self._norm, out)
            return
        x = x if rows is None else x[rows]
        if self._norm is None:
            out.copy_(x)
        else:
            out.copy_(F.layer_norm(x, x.shape[1:], self._norm.weight, self._norm.bias, self._norm.eps))


def _norm(norm: LayerNorm) -> Norm:
    vectors = (norm.weight, norm.bias)
    weight, bias = (None if vector is None else vector.float().contiguous() for vector in vectors)
    return Norm("layer", weight, bias, norm.eps)


class Stream:
    """Rows of one pass: the float32 sums of the layers so far, and those as a linear reads them."""

    def __init__(self, rows: Tensor, dtype: torch.dtype, buffers: Buffers, name: str = "rows") -> None:
        """`rows` `[rows, dimensions]`, contiguous; those of float32 are overwritten. Linears read `dtype`."""
        self.sums = rows.float()
        self.dtype = dtype
        self._buffers, self._name = buffers, name

    def rounded(self) -> Tensor:
        """The sums as a linear layer reads them."""
        out = self._buffer()
        if out is not self.sums:
            PackedNorm(None).store(self.sums, out)
        return out

    def add(self, linear: Linear, x: Tensor) -> None:
        linear.add_to(x, self.sums)

    def norm(self, norm: PackedNorm) -> Tensor:
        """Norms the sums; returns them as a linear layer reads them."""
        out = self._buffer()
        if out is not self.sums:
            norm.store(self.sums, out)
        norm.store(self.sums, self.sums)
        return out

    def normed(self, norm: PackedNorm) -> Tensor:
        """The sums with a norm, as a linear layer reads them; they stay as they are."""
        out = self._spaced()
        norm.store(self.sums, out)
        return out

    def _buffer(self) -> Tensor:
        """The sums themselves, where they have the dtype and may lie together."""
        out = self._spaced()
        return self.sums if self.dtype == torch.float32 and out.is_contiguous() else out

    def _spaced(self) -> Tensor:
        rows, columns = self.sums.shape
        return self._buffers.get(self._name, rows, columns, self.dtype, is_spaced=True)


class PackedRows:
    """The rows of a pass, and how branches of a layer join them: with the norm before or after."""

    def __init__(self, stream: Stream, *, is_pre_norm: bool, rows: Tensor | None = None) -> None:
        """`rows`: the sums as a linear layer reads them, where these are there already."""
        self.stream = stream
        self.is_pre_norm = is_pre_norm
        self._rows = None if is_pre_norm else stream.rounded() if rows is None else rows

    def read(self, norm: PackedNorm) -> Tensor:
        """The rows as the branch with this norm reads them."""
        return self.stream.normed(norm) if self._rows is None else self._rows

    def join(self, linear: Linear, x: Tensor, norm: PackedNorm) -> None:
        """Adds what the branch's last linear layer makes of `x`."""
        self.stream.add(linear, x)
        if self._rows is not None:
            self._rows = self.stream.norm(norm)

    @property
    def vectors(self) -> Tensor:
        """The sums in the dtype of the linear layers, where norms come after; else float32."""
        return self.stream.sums if self._rows is None else self._rows


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Linear layers and norms in the order in which rows pass them, whatever a family calls them."""

    query: Any
    key: Any
    value: Any
    output: Any
    norm_attention: Any
    up: Any
    activation: Any
    """The function between `up` and `down`."""
    down: Any
    norm: Any


class SelfAttention:
    """The linear layers of a layer's attention; query, key and value are one."""

    def __init__(self, parts: LayerParts, pack: Pack) -> None:
        self.qkv = packed(pack, parts.query, parts.key, parts.value)
        self.output, self.norm = packed(pack, parts.output), PackedNorm(parts.norm_attention)

    @property
    def linears(self) -> list[Linear]:
        return [self.qkv, self.output]


class PackedMlp:
    """The linear layers of a layer's MLP, the activation inside the first."""

    def __init__(self, parts: LayerParts, pack: Pack) -> None:
        """Raises LookupError for an activation that is none of ours."""
        activation: Activation | None = activation_of(parts.activation)
        if activation is None:
            raise LookupError("its activation is none of ours")
        self.up = pack(parts.up.weight, parts.up.bias, activation=activation)
        self.down, self.norm = packed(pack, parts.down), PackedNorm(parts.norm)

    @property
    def linears(self) -> list[Linear]:
        return [self.up, self.down]

    def __call__(self, rows: PackedRows, buffers: Buffers) -> None:
        x = rows.read(self.norm)
        rows.join(self.down, stored(self.up, x, buffers, "inner"), self.norm)


class PackedLayer:
    """A layer whose tokens see all others of their input."""

    def __init__(self, parts: LayerParts, pack: Pack) -> None:
        self._attention, self._mlp = SelfAttention(parts, pack), PackedMlp(parts, pack)

    def __call__(self, rows: PackedRows, attention: PassAttention, buffers: Buffers) -> PackedRows:
        x = rows.read(self._attention.norm)
        qkv = stored(self._attention.qkv, x, buffers, "qkv")
        context = buffer_for(buffers, "context", x, x.shape[1])
        attention.attend(qkv, context)
        rows.join(self._attention.output, context, self._attention.norm)
        self._mlp(rows, buffers)
        return rows


class FirstTokenLayer:
    """A last layer of which only the first token of each input is read; it returns those rows."""

    def __init__(self, parts: LayerParts, pack: Pack) -> None:
        self._query, self._key_value = packed(pack, parts.query), packed(pack, parts.key, parts.value)
        self._output, self._norm = packed(pack, parts.output), PackedNorm(parts.norm_attention)
        self._mlp = PackedMlp(parts, pack)

    def __call__(self, rows: PackedRows, attention: PassAttention, buffers: Buffers) -> PackedRows:
        x = rows.read(self._norm)
        key_value = stored(self._key_value, x, buffers, "key_value")
        own = x[attention.starts]
        query = stored(self._query, own, buffers, "query")
        context = buffer_for(buffers, "first context", own, own.shape[1])
        attention.attend_from_first(query, key_value, context)
        stream = Stream(rows.stream.sums[attention.starts], rows.stream.dtype, buffers, "first rows")
        first = PackedRows(stream, is_pre_norm=rows.is_pre_norm, rows=own)
        first.join(self._output, context, self._norm)
        self._mlp(first, buffers)
        return first


def pack_layers(
    layers: list[LayerParts], pack: Pack, *, reads_first: bool
) -> list[PackedLayer | FirstTokenLayer]:
    """Packs all layers. `reads_first`: of the last one, nothing is read but the first token of each input."""
    *others, last = layers
    last_layer = FirstTokenLayer(last, pack) if reads_first else PackedLayer(last, pack)
    return [*(PackedLayer(parts, pack) for parts in others), last_layer]


def packed(pack: Pack, *linears: Any) -> Linear:
    """Several layers of the same rows as one."""
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat(biases)
    return pack(torch.cat([linear.weight for linear in linears]), bias)


def buffer_for(buffers: Buffers, name: str, rows: Tensor, columns: int) -> Tensor:
    """A buffer of as many rows as `rows`, in their dtype."""
    return buffers.get(name, len(rows), columns, rows.dtype, is_spaced=True)


def stored(linear: Linear, x: Tensor, buffers: Buffers, name: str) -> Tensor:
    """Returns what a linear layer makes of `x`, in a buffer of that name."""
    out = buffer_for(buffers, name, x, linear.out_features)
    linear.store(x, out)
    return out


def free_linears(modules: Iterable[Any], kept: frozenset[int] = frozenset()) -> None:
    """Gives up the memory of packed linear layers, but for weights whose ids are `kept`."""
    files = MappedFiles()
    for module in modules:
        if type(module) is torch.nn.Linear and id(module.weight) not in kept:
            free(module, files)
