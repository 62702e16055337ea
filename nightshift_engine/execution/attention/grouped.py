"""Attention where groups of layers have their KV in blocks of their own: a step for each group."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from ..step_layout import StepLayout
from .interface import AttentionBackend, AttentionStep, LayerCall


class GroupedAttention:
    """A back end per group of layers, all over one `KvMemory`. A step is the object itself."""

    def __init__(self, backends: Seq[AttentionBackend], group_of: dict[int, int]) -> None:
        self._backends, self._group_of = list(backends), group_of
        self._steps: list[AttentionStep] = []

    @property
    def backends(self) -> list[AttentionBackend]:
        return list(self._backends)

    def step(self, layout: StepLayout) -> GroupedAttention:
        by_group = zip(self._backends, layout.by_group, strict=True)
        self._steps = [backend.step(each) for backend, each in by_group]
        return self

    def of_layer(self, layer_index: int) -> AttentionStep:
        """The step of the layer's group."""
        return self._steps[self._group_of[layer_index]]

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """As `AttentionStep.attend`."""
        return self.of_layer(layer_index).attend(layer_index, query, key, value, call)
