"""Operations of a written-out decoder between its linear layers, by device."""

from collections.abc import Callable, Hashable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..attention.interface import AttentionStep
from .adapters.memory import PlaceMemory
from .adapters.rows import AdapterRows
from .weights import Attention, Embedding, Head, Norm, Router


class Operations(Protocol):
    """Everything but linear layers. What it writes to, its callers got from `buffer`."""

    dtype: torch.dtype
    """Dtype of activations."""

    def buffer(self, name: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory kept from step to step under its name.

        Without a dtype it is for activations, whose rows may lie apart.
        """

    def embed(self, embedding: Embedding, token_ids: Tensor, positions: Tensor, out: Tensor) -> None:
        """Tokens `[rows]` at `positions` `[rows]` to `out` `[rows, hidden]`, float32."""

    def norm(self, x: Tensor, norm: Norm | None, out: Tensor, rows: Tensor | None = None) -> None:
        """Rows of float32 `x`, all or those given, normed (or as they are) to `out`."""

    def add(self, x: Tensor, norm: Norm | None, factor: float, out: Tensor) -> None:
        """Adds `factor` times float32 `x`, normed if there is a norm, to float32 `out`."""

    def rotate(self, qkv: Tensor, attention: Attention, positions: Tensor) -> None:
        """Norms and rotates the heads of queries and keys of `qkv`, in place."""

    def attend(self, step: AttentionStep, layer: int, attention: Attention, qkv: Tensor) -> Tensor:
        """`[rows, query heads * head_dim]`, of rows of queries, keys and values."""

    def adapt(
        self, x: Tensor, memory: PlaceMemory, rows: AdapterRows, out: Tensor, factor: float = 1.0
    ) -> None:
        """Adds `factor` times what adapters make of their rows of `x` to those of `out`."""

    def finish_logits(self, logits: Tensor, head: Head) -> None:
        """Finishes, in place, what the linear layer of the head gave."""

    def can_repeat(self, attention: AttentionStep) -> bool:
        """Whether `repeat` can be used with this attention."""

    def repeat(self, size: Hashable, valid_for: Hashable, compute: Callable[[], None]) -> None:
        """Does what `compute` does: a step of this size, with attention and tables as `valid_for` says.

        An implementation may keep what was done and do it again without calling `compute`.
        """


@runtime_checkable
class MixtureOperations(Operations, Protocol):
    """Operations that a mixture of packed experts needs besides."""

    def choose_experts(self, router: Router, logits: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """The experts of each row of logits, int64, and their weights, float32: `[rows, choices]` each.

        Or those that are given, and their weights.
        """

    def sort_by_expert(self, x: Tensor, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
        """A row of `x` for each choice, those of one expert together; where each expert's rows start,
        `[experts + 1]`; and the place of each choice, `[rows, choices]`."""

    def combine(
        self,
        y: Tensor,
        places: Tensor,
        weights: Tensor,
        shared: Tensor | None,
        gates: Tensor | None,
        factor: float | None,
        out: Tensor,
    ) -> None:
        """Writes each row's weighted sum of its places of `y`, and `shared` by the sigmoids of `gates`, to
        `out`.
        """
