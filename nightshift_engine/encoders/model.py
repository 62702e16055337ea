"""A Hugging Face encoder whose output depends on its input alone: token ids to vectors."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel

from ..checkpoint.files import brings_own_code, local_directory
from ..checkpoint.kinds import ENCODER, require_kind
from ..core.roofline import EncoderRoofline
from ..errors import ModelLoadFailed, UnsupportedModel
from ..execution.packed_layers import NOT_PACKED
from ..loading.context import longest_input
from ..loading.weights import (
    check_complete,
    checkpoint_dtype,
    load_checkpoint,
    resolve_device,
    resolve_dtype,
    weight_not_finite,
)
from ..text.tokenizer import Tokenizer
from .batcher import length_buckets
from .matryoshka import Matryoshka
from .packed_layers import PackedTextLayers, measure_roofline
from .pooling import Pooling
from .prompts import Prompts
from .texts import EncoderText, TextInput, TextTokenizer, TextTokens, token_ids_objection

log = logging.getLogger(__name__)

CPU_NUM_BATCHED_TOKENS = 1_024
"""Tokens of one forward pass, padding counted. MiniLM with one thread encodes 3,640 tokens/s at 256, 4,142 at
1,024 and 2,942 at 8,192, where the activations no longer fit the cache."""

GPU_NUM_BATCHED_TOKENS = 16_384
"""A guess, to be replaced by a measurement: large enough to fill a GPU, small beside its memory."""

# Embeddings agree to about 1e-6 in float32; a model that sees padding, or other inputs, differs visibly.
_BATCHING_TOLERANCE = {torch.float32: 1e-4}
_BATCHING_TOLERANCE_HALF = 5e-2


class EncoderModel:
    """A loaded encoder with its tokenizer and pooling. Not thread-safe but for `tokenize`."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, pooling: Pooling, max_length: int, directory: Path
    ) -> None:
        self.max_length = max_length
        self.dimensions = pooling.dimensions
        self.dtype = str(model.dtype).removeprefix("torch.")
        budget = CPU_NUM_BATCHED_TOKENS if model.device.type == "cpu" else GPU_NUM_BATCHED_TOKENS
        self.max_num_batched_tokens = max(budget, max_length)
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])  # I-BERT's is no nn.Embedding
        self.pooling = pooling
        self.matryoshka = Matryoshka.read(directory)
        self.prompts = Prompts.read(directory)
        self.tokenizer = tokenizer
        self._model = model
        self._texts = TextTokenizer(
            tokenizer, lowercases=pooling.lowercases, pools_prompts=pooling.includes_prompt
        )
        self._pad_id = int(model.config.pad_token_id or 0)
        self._packed: PackedTextLayers | None = None
        self.roofline: EncoderRoofline | None = None
        """The work of its passes. None: it is not known."""

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        dtype: str = "auto",
        device: str = "auto",
        max_length: int | None = None,
        revision: str | None = None,
    ) -> EncoderModel:
        """Loads a directory or a hub id; `max_length` is what the checkpoint was made for if it is None."""
        directory = local_directory(str(path_or_id), revision)
        require_kind(str(directory), None, ENCODER)
        tokenizer = Tokenizer.load(str(directory))
        model = _load_weights(directory, dtype, resolve_device(device))
        pooling = _read_pooling(directory, model)
        limit = longest_input(model, tokenizer, pooling.max_length, max_length)
        encoder = cls(model, tokenizer, pooling, limit, directory)
        encoder._check(directory)
        encoder._pack()
        return encoder

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, with the checkpoint's default prompt and special tokens; never cut.

        Raises `InvalidRequest` for half of a surrogate pair, which is no text.
        """
        return [*_ids(self.tokenize_texts([EncoderText(text, self.prompts.default)])[0])]

    def tokenize_all(self, texts: Sequence[str]) -> list[TextInput]:
        """The same of many texts, in less time for each. Raises `InvalidRequest` if any is none."""
        return self.tokenize_texts([EncoderText(text, self.prompts.default) for text in texts])

    def tokenize_texts(self, texts: Sequence[EncoderText]) -> list[TextInput]:
        """Token ids of texts with prompts, cut only where one asks for it. Raises `InvalidRequest`."""
        return self._texts.tokenize(texts)

    @property
    def reads_parts(self) -> bool:
        """Whether a text that will be cut is read no further than it must be."""
        return self._texts.reads_parts

    @property
    def is_normalized(self) -> bool:
        """Whether its vectors have unit length."""
        return self.pooling.is_normalized

    def objection(self, input: TextInput) -> str | None:
        """The reason why token ids cannot be encoded, however many they are."""
        return token_ids_objection(_ids(input), self.vocab_size)

    def encode(self, inputs: Sequence[TextInput]) -> NDArray[np.float32]:
        """Vectors, float32 [inputs, dimensions], of lists of token ids, each of 1 to `max_length` tokens."""
        vectors = np.empty((len(inputs), self.dimensions), dtype=np.float32)
        for indices in length_buckets(inputs, self.max_num_batched_tokens):
            vectors[indices] = self._forward([inputs[index] for index in indices]).cpu().numpy()
        return vectors

    @torch.inference_mode()
    def _forward(self, inputs: Sequence[TextInput]) -> Tensor:
        input_ids, mask = self._padded([_ids(input) for input in inputs])
        left_out = None
        if not self.pooling.includes_prompt:
            counts = [input.num_not_pooled if isinstance(input, TextTokens) else 0 for input in inputs]
            left_out = torch.tensor(counts).to(mask.device)  # [inputs]
        return self.pooling(self._hidden(input_ids, mask), mask, left_out)

    def _padded(self, inputs: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and a 0/1 mask, [inputs, tokens] each. Padding is behind: a decoder never sees it."""
        longest = max(map(len, inputs))
        rows = [[*token_ids, *[self._pad_id] * (longest - len(token_ids))] for token_ids in inputs]
        lengths = torch.tensor([len(token_ids) for token_ids in inputs])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        return torch.tensor(rows).to(self._model.device), mask.to(self._model.device)

    @torch.inference_mode()
    def _hidden(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Vectors of tokens `[inputs, tokens, dimensions]`, from `[inputs, tokens]` twice."""
        if self._packed is not None:
            return self._packed(input_ids, mask)
        hidden: Tensor = self._model(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return hidden

    @torch.inference_mode()
    def _pack(self) -> None:
        """Runs packed layers from now on, where there are some that compute the same."""
        packed = PackedTextLayers.pack(self._model)
        if packed is None:
            return
        long = [(7 * index + 1) % self.vocab_size for index in range(min(self.max_length, 40))]
        inputs = [long, long[: len(long) // 2 + 1]]
        expected = self._forward(inputs)
        self._packed = packed
        try:
            difference = ((self._forward(inputs) - expected).norm() / expected.norm()).item()
        except NOT_PACKED as error:
            log.debug("its embeddings do not go to packed layers: %r", error)
            difference = math.inf
        if not difference <= _BATCHING_TOLERANCE.get(self._model.dtype, _BATCHING_TOLERANCE_HALF):
            log.warning("packed layers differ by %.1e and are not used", difference)
            self._packed = None
        else:
            self.roofline = measure_roofline(self._model)
            packed.free_originals(self._model)

    def _check(self, directory: Path) -> None:
        """Chooses the default pooling by computing. Raises UnsupportedModel if it is no encoder of text."""
        name, made_as = str(directory), type(self._model).__name__
        try:
            is_causal = self._sees_only_earlier_tokens()
            if not self.pooling.is_declared and is_causal:
                self.pooling = replace(self.pooling, modes=("lasttoken",))
            shape = tuple(self._hidden(*self._padded([[self._pad_id]])).shape)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{made_as} gives no vectors of tokens: {type(error).__name__}: {error}"
            raise UnsupportedModel(name, reason) from error
        if shape != (1, 1, hidden_size := int(self._model.config.hidden_size)):
            raise UnsupportedModel(name, f"its vectors have {shape[-1]} dimensions, not {hidden_size}")
        is_said_to_be = not brings_own_code(directory) and getattr(self._model.config, "is_causal", True)
        if is_causal and not is_said_to_be:
            made = "its files bring code of their own, which is not run, or say that it sees later tokens"
            raise UnsupportedModel(name, f"{made}; {made_as} sees only earlier ones")
        self._refuse_if_batching_changes_results(directory)

    def _sees_only_earlier_tokens(self) -> bool:
        """Whether the first of two tokens is the same whatever the second is."""
        if self.max_length < 2 or self.vocab_size < 3:
            return False
        first, others = self.vocab_size // 2, (self.vocab_size // 3, self.vocab_size - 1)
        input_ids = torch.tensor([[first, other] for other in others]).to(self._model.device)
        one, two = self._hidden(input_ids, torch.ones_like(input_ids))[:, 0].float()
        return bool((one - two).norm() <= _BATCHING_TOLERANCE[torch.float32] * one.norm())

    def _refuse_if_batching_changes_results(self, directory: Path) -> None:
        """Raises UnsupportedModel where padding or other inputs change an input's vector (FNet's do)."""
        text = self.tokenize("a short text")[: self.max_length]
        if strange := token_ids_objection(text, self.vocab_size):
            raise UnsupportedModel(str(directory), f"what its tokenizer makes of a text {strange}")
        long = (text * 8)[: self.max_length]
        alone = self._forward([text])[0]
        padded = self._forward([text, long])[0]
        difference = ((alone - padded).norm() / alone.norm()).item()
        if not difference <= _BATCHING_TOLERANCE.get(self._model.dtype, _BATCHING_TOLERANCE_HALF):
            if weight := weight_not_finite(self._model):
                raise UnsupportedModel(str(directory), f"its weight {weight} has NaN or infinite values")
            raise UnsupportedModel(str(directory), f"batching changes its embeddings, by {difference:.1e}")


def _ids(input: TextInput) -> Sequence[int]:
    return input.token_ids if isinstance(input, TextTokens) else input


def _read_pooling(directory: Path, model: Any) -> Pooling:
    try:
        return Pooling.read(directory, int(model.config.hidden_size), model.device)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadFailed(f"cannot read how {str(directory)!r} pools its tokens: {error!r}") from error


def _load_weights(directory: Path, dtype: str, device: torch.device) -> Any:
    def dtype_of(config: Any) -> torch.dtype:
        if not hasattr(config, "hidden_size") or not hasattr(config, "vocab_size"):
            raise UnsupportedModel(str(directory), f"{config.model_type} is not an encoder of text")
        return resolve_dtype(dtype, checkpoint_dtype(config), device)

    model, config, info = load_checkpoint(directory, AutoModel, dtype_of, name=str(directory))
    check_complete(str(directory), {"missing_keys": [], "mismatched_keys": info["mismatched_keys"]})
    # A pooler head belongs to classification; the embedding is made from the tokens' vectors.
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise ModelLoadFailed(f"{str(directory)!r} lacks weights: {missing[0]} and {len(missing) - 1} more")
    if unused := ENCODER.unused(config, type(model).__name__, info["unexpected_keys"]):
        head = f"{type(model).__name__} has no use for its weights {unused[0]} and {len(unused) - 1} more"
        raise UnsupportedModel(str(directory), f"{head}: with a head of its own, it is not an embedder")
    if getattr(config, "use_cache", False):
        model.config.use_cache = False  # nothing follows a text
    return model.to(device).eval()
