"""The way from a layer's input to its queries, keys and values: linear layers, norms, rotary embedding."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from .facts import AttentionFacts, HeadNormFacts, NotPlain, RotationFacts
from .trace import LayerTrace, ModuleCall
from .values import NamedFactors, factor_of, recognise_norm, same

HEAD_DIM_MAX = 512
"""Widest head that `kernels/native/decoder.cpp` has room for."""
LINEARS = (torch.nn.Linear, Conv1D)
Tables = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class _Heads:
    """Output of the linear layers: `[heads, tokens, head_dim]`."""

    query: Tensor
    key: Tensor
    linears: tuple[str, ...]
    is_grouped: bool


def is_linear(call: ModuleCall) -> bool:
    return type(call.module) in LINEARS


def attention_linears(trace: LayerTrace) -> list[ModuleCall]:
    """The linear layers before attention. Raises `NotPlain` if they do not read the same input."""
    projections = [call for call in trace.calls[: trace.attended.num_calls_before] if is_linear(call)]
    if len(projections) not in (1, 3) or any(not same(call.x, projections[0].x) for call in projections):
        raise NotPlain(f"{len(projections)} linear layers make its queries, keys and values")
    return projections


def output_linear(trace: LayerTrace) -> ModuleCall:
    """The linear layer that reads what attention answered. Raises `NotPlain`."""
    for call in trace.calls[trace.attended.num_calls_before :]:
        if is_linear(call):
            if same(call.x, trace.attended.answer):
                return call
            break
    raise NotPlain("something comes between its attention and the linear layer after it")


def recognise_attention(trace: LayerTrace, rotaries: list[Tables], factors: NamedFactors) -> AttentionFacts:
    """Raises `NotPlain`. `rotaries` are the tables of the model's rotary embeddings where the trace is."""
    attended = trace.attended
    query_heads, _, head_dim = attended.query.shape
    key_heads = attended.key.shape[0]
    if attended.value.shape[2] != head_dim or head_dim > HEAD_DIM_MAX:
        raise NotPlain(f"its keys have {head_dim} dimensions, its values {attended.value.shape[2]}")
    heads = _split_heads(trace, attention_linears(trace))
    query, query_norm = _after_norm(trace, heads.query)
    key, key_norm = _after_norm(trace, heads.key)
    rotation, score_factor = _recognise_rotation(
        (query, attended.query), (key, attended.key), rotaries, factors
    )
    return AttentionFacts(
        query_heads=query_heads,
        key_heads=key_heads,
        head_dim=head_dim,
        linears=heads.linears,
        is_grouped=heads.is_grouped,
        query_norm=query_norm,
        key_norm=key_norm,
        rotation=rotation,
        score_factor=score_factor,
        output=output_linear(trace).path,
    )


def _split_heads(trace: LayerTrace, linears: list[ModuleCall]) -> _Heads:
    """Finds the values among what the linear layers gave, and so the order of the rest."""
    value, head_dim = trace.attended.value, trace.attended.value.shape[2]
    query_heads, key_heads = len(trace.attended.query), len(value)
    if len(linears) == 3:
        query, key, last = (_heads_of(call.y, head_dim) for call in linears)
        if not (last.shape == value.shape and torch.equal(last, value) and len(query) == query_heads):
            raise NotPlain("its queries, keys and values do not come in this order")
        return _Heads(query, key, tuple(call.path for call in linears), is_grouped=False)
    [only] = linears
    heads = _heads_of(only.y, head_dim)
    if len(heads) != query_heads + 2 * key_heads:
        raise NotPlain(f"one linear layer makes {len(heads)} heads of {query_heads} queries")
    query, key, last = torch.split(heads, [query_heads, key_heads, key_heads])
    if torch.equal(last, value):
        return _Heads(query, key, (only.path,), is_grouped=False)
    grouped = heads.reshape(key_heads, -1, *heads.shape[1:])
    if torch.equal(grouped[:, -1], value):
        return _Heads(grouped[:, :-2].flatten(0, 1), grouped[:, -2], (only.path,), is_grouped=True)
    raise NotPlain("one linear layer makes its queries, keys and values in an unknown order")


def _heads_of(y: Tensor, head_dim: int) -> Tensor:
    tokens = y.reshape(-1, y.shape[-1])
    if tokens.shape[1] % head_dim:
        raise NotPlain(f"a linear layer before attention gives {tokens.shape[1]} for heads of {head_dim}")
    return tokens.reshape(len(tokens), -1, head_dim).transpose(0, 1)


def _after_norm(trace: LayerTrace, heads: Tensor) -> tuple[Tensor, HeadNormFacts | None]:
    """Output of the norm of these heads, if there is one between the linear layers and attention."""
    num_heads, _, head_dim = heads.shape
    for call in trace.calls[: trace.attended.num_calls_before]:
        if is_linear(call) or not call.is_leaf or call.x.numel() != heads.numel():
            continue
        given = _as_heads(call.x, heads)
        if given is None or not torch.equal(given, heads) or call.y.shape != call.x.shape:
            continue
        norm = recognise_norm(call)
        spans_heads = call.x.shape[-1] == num_heads * head_dim and num_heads > 1
        normed = _as_heads(call.y, heads)
        assert normed is not None, "it came in this shape"
        return normed, HeadNormFacts(norm, spans_heads)
    return heads, None


def _as_heads(x: Tensor, like: Tensor) -> Tensor | None:
    """`x`, by tokens or by heads, as `[heads, tokens, head_dim]`."""
    num_heads, num_tokens, head_dim = like.shape
    if x.dim() == 4 and x.shape[1:3] == (num_heads, num_tokens):
        return x[0]
    if x.shape[-1] in (head_dim, num_heads * head_dim):
        return x.reshape(num_tokens, num_heads, head_dim).transpose(0, 1)
    return None


def _recognise_rotation(
    query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], rotaries: list[Tables], factors: NamedFactors
) -> tuple[RotationFacts | None, float]:
    """Finds the rotation that turns the first of each pair into the second, and the factor of the scores."""
    for rotation, turn in _rotations(rotaries):
        measured = [factor_of(wanted, turn(before)) for before, wanted in (query, key)]
        known = [factors.exactly(value) for value in measured if value is not None]
        if len(known) == 2:
            return rotation, known[0] * known[1]
    raise NotPlain("its queries or keys are changed between their linear layer and attention")


@dataclass(frozen=True, slots=True)
class _Turn:
    """A rotary embedding at the trace's positions."""

    cosine: Tensor
    sine: Tensor
    is_interleaved: bool

    def __call__(self, heads: Tensor) -> Tensor:
        half = self.cosine.shape[1]
        if 2 * half > heads.shape[2]:
            return torch.zeros_like(heads)
        turned = heads.clone()
        if self.is_interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        turned[..., first] = heads[..., first] * self.cosine - heads[..., second] * self.sine
        turned[..., second] = heads[..., second] * self.cosine + heads[..., first] * self.sine
        return turned


def _rotations(rotaries: Iterable[Tables]) -> Iterator[tuple[RotationFacts | None, _Turn]]:
    nothing = torch.empty(1, 0)
    yield None, _Turn(nothing, nothing, is_interleaved=False)
    for index, (cosine, sine) in enumerate(rotaries):
        for is_interleaved in (False, True):
            yield RotationFacts(index, is_interleaved), _Turn(cosine, sine, is_interleaved)
