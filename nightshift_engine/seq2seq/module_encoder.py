"""transformers' own encoder over sources of several lengths, in padded batches."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

PADDING_RATIO_MAX = 0.25
"""Share of the tokens of a batch that may be padding."""


class ModuleEncoder:
    """The encoder of a transformers model."""

    def __init__(self, model: Any) -> None:
        self._encoder, self._device = model.get_encoder(), model.device
        pad = model.config.pad_token_id
        self._pad = pad if isinstance(pad, int) else 0

    def __call__(self, sources: Seq[Seq[int]]) -> Tensor:
        """Hidden states `[tokens, hidden]`, one source's after another's."""
        found: dict[int, Tensor] = {}
        for group in _similar_lengths([*map(len, sources)]):
            states, mask = self._states([sources[index] for index in group])
            found |= {index: own[kept] for index, own, kept in zip(group, states, mask, strict=True)}
        return torch.cat([found[index] for index in range(len(sources))])

    def _states(self, sources: Seq[Seq[int]]) -> tuple[Tensor, Tensor]:
        """`[sources, tokens, hidden]`, and which of the tokens are some."""
        width = max(map(len, sources))
        ids = [[*source, *[self._pad] * (width - len(source))] for source in sources]
        lengths = torch.tensor([*map(len, sources)], device=self._device)
        mask = torch.arange(width, device=self._device) < lengths[:, None]
        input_ids = torch.tensor(ids, device=self._device)
        return self._encoder(input_ids=input_ids, attention_mask=mask.long()).last_hidden_state, mask


def _similar_lengths(lengths: list[int]) -> Iterator[list[int]]:
    """Indices in groups in which little is padding, longest first."""
    group: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        padded = (len(group) + 1) * lengths[group[0] if group else index]
        if group and num_tokens + lengths[index] < (1 - PADDING_RATIO_MAX) * padded:
            yield group
            group, num_tokens = [], 0
        group.append(index)
        num_tokens += lengths[index]
    if group:
        yield group
