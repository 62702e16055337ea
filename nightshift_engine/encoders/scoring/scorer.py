"""Models that score texts: texts or pairs in, logits for each of their labels out.

How tokens become logits is a subclass's; that it depends on an input alone is checked here, at load.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...checkpoint.files import brings_own_code
from ...checkpoint.kinds import Kind
from ...core.roofline import EncoderRoofline
from ...errors import UnsupportedModel
from ...loading.weights import (
    check_all_used,
    checkpoint_dtype,
    load_checkpoint,
    resolve_dtype,
    weight_not_finite,
)
from ...text.tokenizer import Tokenizer
from ..batcher import length_buckets
from ..model import CPU_NUM_BATCHED_TOKENS, GPU_NUM_BATCHED_TOKENS
from ..texts import token_ids_objection
from .labels import Labels
from .pairs import Frame, FramedTokens, PairText


def load_weights(directory: Path, auto_class: Any, kind: Kind, dtype: str, device: torch.device) -> Any:
    """A model of a class of transformers, on its device, in eval mode; `kind` says which weights it needs.

    Raises ModelLoadFailed or UnsupportedModel.
    """
    name = str(directory)
    if brings_own_code(directory, auto_class.__name__):
        raise UnsupportedModel(name, "its files bring code of their own (auto_map), which is not run")
    loaded = load_checkpoint(
        directory,
        auto_class,
        lambda config: resolve_dtype(dtype, checkpoint_dtype(config), device),
        name=name,
    )
    check_all_used(loaded, kind, name)
    return loaded.model.to(device).eval()


_TOLERANCE = {torch.float32: 1e-4}
_TOLERANCE_HALF = 5e-2
"""Logits agree to about 1e-6 in float32; a model that sees padding, or other inputs, differs visibly."""

_BARE = Frame(((), ()), ((), ()), (0,))


def bare(token_ids: Sequence[int]) -> FramedTokens:
    """Token ids that are the whole input."""
    return FramedTokens(_BARE, (token_ids,))


class TextScorer(ABC):
    """A loaded model with its tokenizer and labels. Not thread-safe but for `tokenize_all`."""

    labels: Labels
    num_labels: int
    tokenizer: Tokenizer
    takes_texts: ClassVar[bool] = True
    """Whether it scores a text that is not paired with another."""
    takes_pairs: bool
    takes_instructions: bool = False
    """Whether a request may say what makes two texts belong together."""

    def __init__(self, model: Any, max_length: int) -> None:
        self.max_length = max_length
        self.dtype = str(model.dtype).removeprefix("torch.")
        budget = CPU_NUM_BATCHED_TOKENS if model.device.type == "cpu" else GPU_NUM_BATCHED_TOKENS
        self.max_num_batched_tokens = max(budget, max_length)
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])
        self._model = model
        self._pad_id = int(model.config.pad_token_id or 0)
        self.roofline: EncoderRoofline | None = None
        """The work of its passes. None: it is not known."""

    @property
    @abstractmethod
    def reads_parts(self) -> bool:
        """Whether a text that will be cut is read no further than it must be."""

    @abstractmethod
    def tokenize_all(self, texts: Sequence[PairText]) -> list[FramedTokens]:
        """Tokens of texts and pairs, cut only where one asks for it. Raises `InvalidRequest`."""

    @abstractmethod
    def _forward(self, inputs: Sequence[FramedTokens]) -> Tensor:
        """float32 [inputs, labels], in one forward pass."""

    @abstractmethod
    def _reference(self, token_ids: Sequence[int]) -> Tensor:
        """Logits of one text by transformers alone, float32 [labels]."""

    def objection(self, input: FramedTokens) -> str | None:
        """The reason why an input cannot be scored, however long it is."""
        return next(
            filter(
                None,
                (token_ids_objection(token_ids, self.vocab_size) for token_ids in input.texts if token_ids),
            ),
            None,
        )

    def encode(self, inputs: Sequence[FramedTokens]) -> NDArray[np.float32]:
        """Logits, float32 [inputs, labels], of inputs of 1 to `max_length` tokens each."""
        logits = np.empty((len(inputs), self.num_labels), dtype=np.float32)
        for indices in length_buckets(inputs, self.max_num_batched_tokens):
            logits[indices] = self._forward([inputs[index] for index in indices]).cpu().numpy()
        return logits

    def _padded(self, inputs: Sequence[FramedTokens], *, has_types: bool) -> dict[str, Tensor]:
        """Arguments of models, each [inputs, tokens]. Padding is behind: a decoder never sees it."""
        longest = max(map(len, inputs))
        lengths = torch.tensor([len(input) for input in inputs])
        arguments = {
            "input_ids": torch.tensor([_filled(input.token_ids, longest, self._pad_id) for input in inputs]),
            "attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
        }
        if has_types:
            arguments["token_type_ids"] = torch.tensor(
                [_filled(input.type_ids, longest, 0) for input in inputs]
            )
        return {name: tensor.to(self._model.device) for name, tensor in arguments.items()}

    def _at_last(self, values: Tensor, inputs: Sequence[FramedTokens]) -> Tensor:
        """Values of `[inputs, tokens, …]` at the last token of each input: `[inputs, …]`."""
        last = torch.tensor([len(input) - 1 for input in inputs], device=values.device)
        return values[torch.arange(len(inputs), device=values.device), last]

    def _sample(self, longest: int = 32) -> list[FramedTokens]:
        """A short input and a longer one, to compare with others' results."""
        first, second = self.vocab_size // 2, self.vocab_size // 3
        short = [first, second, first, first][: self.max_length]
        long = [second, first] * min(longest // 2, self.max_length // 2) or short
        return [bare(short), bare(long)]

    def _sample_logits(self, name: str) -> Tensor:
        """Logits of the short input, by transformers alone. Raises UnsupportedModel where it gives none."""
        try:
            logits = self._reference(self._sample()[0].token_ids)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise self._gives_none(name, error) from error
        if logits.ndim != 1:
            raise UnsupportedModel(name, f"it gives scores of shape {tuple(logits.shape)} for a text")
        return logits

    def _check_batching(self, name: str, expected: Tensor) -> None:
        """Raises UnsupportedModel where padding or other inputs change the short input's logits."""
        if weight := weight_not_finite(self._model):
            raise UnsupportedModel(name, f"its weight {weight} has NaN or infinite values")
        short, long = self._sample()
        try:
            alone, padded = self._forward([short])[0], self._forward([short, long])[0]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise self._gives_none(name, error) from error
        if expected.shape != alone.shape:
            raise UnsupportedModel(name, f"it gives scores of shape {tuple(expected.shape)} for a text")
        difference = max(float((logits - expected).abs().max()) for logits in (alone, padded))
        if not difference <= self._tolerance(expected):
            raise UnsupportedModel(name, f"batching changes its scores, by {difference:.1e}")

    def _tolerance(self, expected: Tensor) -> float:
        return _TOLERANCE.get(self._model.dtype, _TOLERANCE_HALF) * max(1.0, float(expected.norm()))

    def _gives_none(self, name: str, error: Exception) -> UnsupportedModel:
        reason = f"{type(self._model).__name__} gives no scores: {type(error).__name__}: {error}"
        return UnsupportedModel(name, reason)


def _filled(values: Sequence[int], length: int, filler: int) -> list[int]:
    return [*values, *[filler] * (length - len(values))]
