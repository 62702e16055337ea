"""Paged attention behind the transformers attention interface.

A model loaded with `attn_implementation=ATTENTION_NAME` calls `paged_attention` in every attention layer. The
tokens of many sequences come as one row `[1, heads, tokens, dim]`; the `AttentionStep` that the runner set
for this thread knows which of them belong together, and where their earlier keys and values lie. It is set
for a thread, and not passed, because some models drop unknown keyword arguments on the way down.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from transformers import AttentionInterface

from ..step_layout import StepLayout
from .latent import LATENT_NAME, LatentHeads

ATTENTION_NAME = "nightshift_paged"


class UnsupportedAttention(Exception):
    """A layer asked for something the paged attention does not do. The self-test turns it into a refusal."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A layer's parameters of attention beside its tensors."""

    scale: float
    window: int | None  # a token sees this many tokens, itself included
    softcap: float | None
    sinks: Tensor | None  # [heads], one logit per head that takes weight and gives no value

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


class AttentionStep(Protocol):
    """Attention as the layers of one forward pass call it."""

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Stores the step's keys and values, then attends over all that each sequence has.

        Query `[heads, tokens, key_dim]`, key `[kv_heads, tokens, key_dim]`, value `[kv_heads, tokens,
        value_dim]`: any strides, except that a head's elements lie together. Returns `[tokens, heads,
        value_dim]`, contiguous, in the query's dtype.
        """


class AttentionBackend(Protocol):
    """Attention over one `KvMemory`."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether it reads what neighbouring sequences have in common once: layouts then say how much."""

    def step(self, layout: StepLayout) -> AttentionStep:
        """Attention for one forward pass; valid until the next call."""


_thread = threading.local()


@contextmanager
def paged_step(step: AttentionStep) -> Iterator[None]:
    """Makes `step` the one that this thread's attention layers talk to."""
    _thread.step = step
    try:
        yield
    finally:
        _thread.step = None


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_ignored: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls: `[1, heads, tokens, dim]` in, `[1, tokens, heads, dim]` out.

    No mask function is registered under our name, so transformers builds none and `attention_mask` is None.
    """
    step: AttentionStep | None = getattr(_thread, "step", None)
    assert step is not None, "a model with paged attention was called outside paged_step()"
    if attention_mask is not None:
        raise UnsupportedAttention("a layer brings an attention mask of its own")
    if not getattr(module, "is_causal", True):
        raise UnsupportedAttention("a layer's attention is not causal")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = LayerCall(scale=scale, window=sliding_window, softcap=softcap, sinks=s_aux)
    latent: LatentHeads | None = getattr(module, LATENT_NAME, None)
    queries = query[0] if latent is None else latent.query(query[0])
    attended = step.attend(cast(int, module.layer_idx), queries, key[0], value[0], call)
    return (attended if latent is None else latent.output(attended))[None], None


AttentionInterface.register(ATTENTION_NAME, paged_attention)


class GroupedAttention:
    """A back end per group of layers, all over one `KvMemory`. A step is the object itself."""

    def __init__(self, backends: Seq[AttentionBackend], group_of: dict[int, int]) -> None:
        self._backends, self._group_of = list(backends), group_of
        self._steps: list[AttentionStep] = []

    @property
    def backends(self) -> list[AttentionBackend]:
        return list(self._backends)

    @property
    def shares_prefixes(self) -> bool:
        return any(backend.shares_prefixes for backend in self._backends)

    def step(self, layout: StepLayout) -> GroupedAttention:
        by_group = zip(self._backends, layout.by_group, strict=True)
        self._steps = [backend.step(layout) for backend, layout in by_group]
        return self

    def of_layer(self, layer_index: int) -> AttentionStep:
        """The step of the layer's group."""
        return self._steps[self._group_of[layer_index]]

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """The same as `AttentionStep.attend`."""
        return self.of_layer(layer_index).attend(layer_index, query, key, value, call)
