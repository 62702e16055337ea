"""A Hugging Face classifier as a function from token ids to a logit for each label.

Of decoders with such a head, those are served whose logits are taken at the last token of each text.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from transformers.modeling_layers import GenericForSequenceClassification

from ...checkpoint.files import local_directory
from ...checkpoint.kinds import CLASSIFIER, require_kind
from ...errors import UnsupportedModel
from ...execution.attention.input_attention import SEPARATE_TOKENS_MIN
from ...execution.packed_layers import NOT_PACKED
from ...loading.context import longest_input
from ...loading.weights import check_vocabulary, resolve_device
from ...text.tokenizer import Tokenizer
from ..packed_layers import PackedBase, PackedTextLayers, measure_roofline
from ..texts import token_ids_objection
from .labels import Labels, read_config
from .pairs import FramedTokens, PairText, PairTokenizer
from .rerank_prompts import PromptTokenizer, declares_prompt
from .scorer import TextScorer, load_weights

log = logging.getLogger(__name__)


class ClassifierModel(TextScorer):
    """A loaded classifier: a head over labels."""

    def __init__(
        self,
        model: Any,
        tokenizer: PairTokenizer,
        max_length: int,
        path: Path,
        *,
        has_types: bool,
        prompts: PromptTokenizer | None = None,
    ) -> None:
        """`prompts` makes a text of a pair, where the checkpoint declares how."""
        super().__init__(model, max_length)
        types_known = getattr(model.config, "type_vocab_size", 0) or tokenizer.num_types  # 0: it ignores them
        tells_apart = tokenizer.takes_pairs and not (has_types and tokenizer.num_types > types_known)
        self.takes_pairs = tells_apart or prompts is not None
        self.takes_instructions = prompts is not None and prompts.takes_instructions
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._has_types = has_types
        self._is_decoder = isinstance(model, GenericForSequenceClassification)
        self._check_head(str(path))
        expected = self._sample_logits(str(path))
        self._check_batching(str(path), expected)
        self._pack()
        self.num_labels = len(expected)
        self.labels = Labels.read(read_config(path), self.num_labels, str(path))

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        dtype: str = "auto",
        device: str = "auto",
        max_length: int | None = None,
        revision: str | None = None,
    ) -> ClassifierModel:
        """Loads a directory or a hub id; `dtype`, `device` and `revision` are as in EngineConfig.

        Raises ModelLoadFailed, UnsupportedModel or InvalidConfig.
        """
        directory = local_directory(str(path_or_id), revision)
        require_kind(str(directory), None, CLASSIFIER)
        tokenizer = Tokenizer.load(str(directory))
        model = load_weights(
            directory, AutoModelForSequenceClassification, CLASSIFIER, dtype, resolve_device(device)
        )
        check_vocabulary(tokenizer, int(model.get_input_embeddings().weight.shape[0]), str(directory))
        has_types = tokenizer.has_token_types and _takes_types(model)
        limit = longest_input(model, tokenizer, None, max_length)
        try:
            pairs = PairTokenizer(tokenizer)
        except ValueError as error:
            raise UnsupportedModel(str(directory), str(error)) from error
        if strange := token_ids_objection(
            [0, *pairs.special_ids], model.get_input_embeddings().weight.shape[0]
        ):
            raise UnsupportedModel(str(directory), f"what its tokenizer puts around a text {strange}")
        has_prompt = declares_prompt(directory, tokenizer)
        prompts = PromptTokenizer.of_checkpoint(directory, model.config, tokenizer) if has_prompt else None
        scorer = cls(model, pairs, limit, directory, has_types=has_types, prompts=prompts)
        scorer.tokenizer = tokenizer
        return scorer

    def tokenize_all(self, texts: Sequence[PairText]) -> list[FramedTokens]:
        if self._prompts is None:
            return self._tokenizer.tokenize(texts)
        pairs = iter(self._prompts.tokenize([text for text in texts if text.pair is not None]))
        single = iter(self._tokenizer.tokenize([text for text in texts if text.pair is None]))
        return [next(single if text.pair is None else pairs) for text in texts]

    @property
    def reads_parts(self) -> bool:
        return self._tokenizer.reads_parts

    @torch.inference_mode()
    def _forward(self, inputs: Sequence[FramedTokens]) -> Tensor:
        arguments = self._padded(inputs, has_types=self._has_types)
        if not self._is_decoder:
            logits: Tensor = self._model(**arguments).logits
            return logits.float()
        hidden = self._model.base_model(**arguments).last_hidden_state  # [inputs, tokens, dimensions]
        return self._model.score(self._at_last(hidden, inputs)).float()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _reference(self, token_ids: Sequence[int]) -> Tensor:
        logits: Tensor = self._model(input_ids=torch.tensor([list(token_ids)]).to(self._model.device)).logits
        return logits[0].float()

    def _check_head(self, name: str) -> None:
        """Refuses decoders that look for a text's last token themselves, other than by the common class."""
        model = self._model
        if hasattr(model, "score") and not self._is_decoder:
            reason = (
                f"{type(model).__name__} finds the last token of a text by padding, which is not computed"
            )
            raise UnsupportedModel(name, f"{reason}; served are encoders, and decoders of newer classes")

    @torch.inference_mode()
    def _pack(self) -> None:
        """Uses packed layers where they have the logits of transformers' own; at best of first tokens alone,
        which is what most heads read.
        """
        model, base = self._model, self._model.base_model
        batches = [self._sample(), self._sample(longest=2 * SEPARATE_TOKENS_MIN)]
        expected = torch.cat([self._forward(inputs) for inputs in batches])
        for reads_first in (True, False):
            layers = None if base is model else PackedTextLayers.pack(base, reads_first=reads_first)
            if layers is None:
                return
            setattr(model, model.base_model_prefix, PackedBase(layers, getattr(base, "pooler", None)))
            try:
                packed = torch.cat([self._forward(inputs) for inputs in batches])
                difference = float((packed - expected).abs().max())
            except NOT_PACKED as error:
                log.debug("its head does not take packed layers: %r", error)
                difference = math.inf
            if difference <= self._tolerance(expected):
                self.roofline = measure_roofline(base, reads_first=reads_first)
                layers.free_originals(base)
                return
            setattr(model, model.base_model_prefix, base)
        log.warning("packed layers differ by %.1e and are not used", difference)


def _takes_types(model: Any) -> bool:
    return "token_type_ids" in inspect.signature(model.forward).parameters
