"""A decoder that ranks: the score of a pair is how much rather it goes on with one token than another.

As sentence-transformers (LogitScore) and vLLM (`classifier_from_token`) declare it, for Qwen3-Reranker and
its like. Of the head over the vocabulary, only the rows of those tokens are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ...checkpoint.files import local_directory
from ...checkpoint.kinds import CLASSIFIER, DECODER, require_kind
from ...core.config import DTypeName
from ...loading.weights import check_vocabulary, resolve_device
from ...text.tokenizer import Tokenizer
from ..batching.limits import longest_input
from .labels import Activation, Labels, ranking_activation, read_config
from .pairs import FramedTokens, PairText
from .rerank_prompts import PromptTokenizer, transformer_settings
from .scored_tokens import ScoredTokens
from .scorer import TextScorer
from .scorer_weights import load_scorer


class GenerativeReranker(TextScorer):
    """A loaded decoder with its prompt. Its one label is relevance, named as the token that stands for it."""

    takes_texts: ClassVar[bool] = False
    num_labels = 1
    takes_pairs = True

    def __init__(
        self,
        model: Any,
        prompts: PromptTokenizer,
        tokens: ScoredTokens,
        labels: Labels,
        max_length: int,
        name: str,
    ) -> None:
        super().__init__(model, max_length)
        self.labels = labels
        self.takes_instructions = prompts.takes_instructions
        self._prompts = prompts
        self._tokens = tokens
        expected = self._sample_logits(name)
        _keep_rows(model, tokens.ids)
        self._check_batching(name, expected)

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        dtype: DTypeName = "auto",
        device: str = "auto",
        max_length: int | None = None,
        revision: str | None = None,
    ) -> GenerativeReranker:
        """As `ClassifierModel.load`."""
        directory = local_directory(str(path_or_id), revision)
        name = str(directory)
        require_kind(name, None, CLASSIFIER)
        tokenizer = Tokenizer.load(name)
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        tokens = ScoredTokens.read(directory, config, tokenizer)
        prompts = PromptTokenizer.of(directory, config, tokenizer)
        model = load_scorer(directory, AutoModelForCausalLM, DECODER, dtype, resolve_device(device))
        check_vocabulary(tokenizer, int(model.get_input_embeddings().weight.shape[0]), name)
        limit = longest_input(
            model, tokenizer, transformer_settings(directory).get("max_seq_length"), max_length
        )
        return cls(model, prompts, tokens, _labels(directory, tokens, tokenizer), limit, name)

    @property
    def reads_parts(self) -> bool:
        return self._prompts.reads_parts

    def tokenize_all(self, texts: Sequence[PairText]) -> list[FramedTokens]:
        """Of pairs: a query and a document."""
        return self._prompts.tokenize(texts)

    @torch.inference_mode()
    def _forward(self, inputs: Sequence[FramedTokens]) -> Tensor:
        logits = self._model(**self._padded(inputs, has_types=False), use_cache=False).logits
        return _difference(self._at_last(logits, inputs).float())  # of [inputs, kept rows of the head]

    @torch.inference_mode()
    def _reference(self, token_ids: Sequence[int]) -> Tensor:
        """By the head over the whole vocabulary, which is there until its rows are chosen."""
        input_ids = torch.tensor([list(token_ids)]).to(self._model.device)
        logits = self._model(input_ids=input_ids, use_cache=False).logits[:, -1, self._tokens.ids]
        return _difference(logits.float())[0]


def _difference(logits: Tensor) -> Tensor:
    """[inputs, 1], from [inputs, 1 or 2]."""
    return logits[:, :1] - logits[:, 1:].sum(1, keepdim=True)


def _keep_rows(model: Any, ids: Sequence[int]) -> None:
    head = model.get_output_embeddings()
    kept = torch.nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    for field in ("weight", "bias"):
        if (values := getattr(head, field)) is not None:
            setattr(kept, field, torch.nn.Parameter(values.detach()[list(ids)].clone(), requires_grad=False))
    model.set_output_embeddings(kept)


def _labels(directory: Path, tokens: ScoredTokens, tokenizer: Tokenizer) -> Labels:
    """Of two tokens the score is the probability of the first, whatever else a checkpoint says of it."""
    activation = "sigmoid" if tokens.no is not None else _declared_activation(directory)
    return Labels((tokenizer.decode([tokens.yes]).strip() or "relevant",), "sigmoid", activation)


def _declared_activation(directory: Path) -> Activation:
    return ranking_activation(read_config(directory), 1, str(directory))
