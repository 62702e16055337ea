"""A step that the device computes, and what computes it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..core.roofline import Roofline
from ..core.steps import Chunk, StepShape
from ..sampling.prompt_scores import PromptScores
from ..sampling.sampler import Choice


class Runner(Protocol):
    """A model runner as the engine needs it; `ModelRunner` is the real one."""

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        """Logits `[rows, vocabulary]`, in the order of `chunks`: a row of each that is last, then its draft;
        behind all of these the rows of the `num_scored` tokens of each.

        `promised` are the tokens that the step before sampled; sequences with a promised token need them.
        """

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zeros blocks whose content is not finite."""

    @property
    def eager_steps(self) -> dict[str, int]:
        """Steps that ran kernel by kernel although the device has graphs, by `EagerReason`."""

    def check(self) -> None:
        """Raises what makes the logits given so far worthless, if there is something."""


class AdapterLoader(Protocol):
    """The adapters of a model; `loading.adapters.Adapters` are the real ones."""

    num_slots: int
    digests: Mapping[str, str]
    """Digests that tell the numbers of adapters apart, by name."""

    def put(self, slot: int, name: str) -> None:
        """Loads an adapter into a slot, in place of what was there. Raises `UnsupportedAdapter`."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device computes."""

    chunks: list[Chunk]
    starts: list[int]
    """The start of each chunk in its sequence."""
    sampled: list[Chunk]
    """Chunks with rows of logits: one, and one for each drafted token."""
    num_drafted: int
    choice: Choice
    shape: StepShape
    launched_s: float
    """The time by the process's own clock."""
    scores: PromptScores | None
    """Log-probabilities of prompts that ask for them; None: none does."""

    @property
    def num_rows(self) -> int:
        """Rows of logits."""
        return len(self.sampled) + self.num_drafted

    def least_seconds(self, roofline: Roofline) -> float:
        """The time that the device needs for the step at the least."""
        counts = (chunk.num_tokens + len(chunk.draft) for chunk in self.chunks)
        spans = zip(self.starts, counts, strict=True)
        return roofline.least_seconds(self.shape.tokens, self.shape.kv_tokens, self.num_rows, spans)
