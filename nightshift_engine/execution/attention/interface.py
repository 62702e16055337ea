"""Paged attention behind the transformers attention interface.

A model loaded with `attn_implementation=ATTENTION_NAME` calls `paged_attention` in every attention layer,
after the rotary embedding. The tokens of many sequences come as one row `[1, heads, tokens, dim]`; which of
them belong together, and where their earlier keys and values lie, is known to the `AttentionStep` that the
runner set for this thread. Back ends make such steps: `selection.py` chooses one.

Why a module-level context, the only one in the engine: some models drop unknown keyword arguments on the way
down, so the state cannot travel through the call. Knows no sequences, no sampling.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
    """What a layer asks for beside its tensors."""

    scale: float
    window: int | None  # a token sees this many tokens, itself included
    softcap: float | None
    sinks: Tensor | None  # [heads], one logit per head that takes weight and gives no value

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


class AttentionStep(Protocol):
    """What the attention layers of one forward pass talk to."""

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Store the step's keys and values, then attend over all that each sequence has.

        Query `[heads, tokens, key_dim]`, key `[kv_heads, tokens, key_dim]`, value
        `[kv_heads, tokens, value_dim]`: any strides, except that a head's elements lie together. Returns
        `[tokens, heads, value_dim]`, contiguous, in the query's dtype.
        """


class AttentionBackend(Protocol):
    """Attention over one `KvMemory`."""

    def step(self, layout: StepLayout) -> AttentionStep:
        """Attention for one forward pass; valid until the next call."""


_thread = threading.local()


@contextmanager
def paged_step(step: AttentionStep) -> Iterator[None]:
    """Make `step` the one that this thread's attention layers talk to."""
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
