"""A decoder that ranks a pair by how much rather it goes on with one token than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ...checkpoint.files import local_directory, read_modules, read_object
from ...checkpoint.kinds import CLASSIFIER, DECODER, MODULE, has_token_fields, require_kind
from ...errors import UnsupportedModel
from ...loading.context import longest_input
from ...loading.weights import check_vocabulary, resolve_device
from ...text.tokenizer import Tokenizer
from .labels import Activation, Labels, ranking_activation, read_config
from .pairs import FramedTokens, PairText
from .rerank_prompts import PromptTokenizer, transformer_settings
from .scorer import TextScorer, load_weights

_OWN = "sentence_transformers."
_METHODS = {"from_2_way_softmax": 2, "no_post_processing": 1}
"""vLLM's methods, and how many tokens they take."""


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The tokens whose logits make a score: the first less the second, or the first alone."""

    yes: int
    no: int | None = None

    @classmethod
    def read(cls, directory: Path, config: Any, tokenizer: Tokenizer) -> ScoredTokens:
        """Reads what config.json says, else modules.json. Raises UnsupportedModel or ModelLoadFailed."""
        name = str(directory)
        scored = _of_config(config, tokenizer, name) if has_token_fields(config) else _of_module(directory)
        vocabulary = range(config.get_text_config().vocab_size)
        for id in scored.ids:
            if type(id) is not int or id not in vocabulary:
                raise UnsupportedModel(name, f"it ranks by the token {id!r}, which its vocabulary has not")
        return scored

    @property
    def ids(self) -> list[int]:
        return [self.yes] if self.no is None else [self.yes, self.no]


def _of_config(config: Any, tokenizer: Tokenizer, name: str) -> ScoredTokens:
    """vLLM's fields: the token for no comes first, as the labels of a classifier would."""
    tokens = config.classifier_from_token
    method = "from_2_way_softmax" if getattr(config, "is_original_qwen3_reranker", False) else config.method
    wanted = _METHODS.get(str(method))
    if not isinstance(tokens, list) or len(tokens) != wanted:
        reason = f"its config.json has classifier_from_token {tokens!r} for the method {method!r}"
        raise UnsupportedModel(
            name, f"{reason}; served are two for from_2_way_softmax, one for no_post_processing"
        )
    ids = [tokenizer.token_id(token) if isinstance(token, str) else None for token in tokens]
    for token, id in zip(tokens, ids, strict=True):
        if id is None:
            raise UnsupportedModel(
                name, f"classifier_from_token has {token!r}, which is no token of its tokenizer"
            )
    return ScoredTokens(*reversed(ids))  # type: ignore[arg-type]


def _of_module(directory: Path) -> ScoredTokens:
    name = str(directory)
    modules = read_modules(directory, name) or []
    kinds = [module.kind for module in modules]
    is_own = all(module.type.startswith(_OWN) for module in modules)
    if kinds != ["Transformer", MODULE] or not is_own or modules[0].path.resolve() != directory.resolve():
        raise UnsupportedModel(
            name, f"its modules {', '.join(kinds)} are none that we compute beside {MODULE}"
        )
    config = read_object(modules[1].path / "config.json", name)
    return ScoredTokens(config.get("true_token_id"), config.get("false_token_id"))  # type: ignore[arg-type]


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
        dtype: str = "auto",
        device: str = "auto",
        max_length: int | None = None,
        revision: str | None = None,
    ) -> GenerativeReranker:
        """Loads a model like `ClassifierModel.load`."""
        directory = local_directory(str(path_or_id), revision)
        name = str(directory)
        require_kind(name, None, CLASSIFIER)
        tokenizer = Tokenizer.load(name)
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        tokens = ScoredTokens.read(directory, config, tokenizer)
        prompts = PromptTokenizer.of_checkpoint(directory, config, tokenizer)
        model = load_weights(directory, AutoModelForCausalLM, DECODER, dtype, resolve_device(device))
        check_vocabulary(tokenizer, int(model.get_input_embeddings().weight.shape[0]), name)
        limit = longest_input(
            model, tokenizer, transformer_settings(directory).get("max_seq_length"), max_length
        )
        scorer = cls(model, prompts, tokens, _labels(directory, tokens, tokenizer), limit, name)
        scorer.tokenizer = tokenizer
        return scorer

    @property
    def reads_parts(self) -> bool:
        return self._prompts.reads_parts

    def tokenize_all(self, texts: Sequence[PairText]) -> list[FramedTokens]:
        """Tokens of pairs: a query and a document."""
        return self._prompts.tokenize(texts)

    @torch.inference_mode()
    def _forward(self, inputs: Sequence[FramedTokens]) -> Tensor:
        logits = self._model(**self._padded(inputs, has_types=False), use_cache=False).logits
        return _difference(self._at_last(logits, inputs).float())  # of [inputs, kept rows of the head]

    @torch.inference_mode()
    def _reference(self, token_ids: Sequence[int]) -> Tensor:
        """Logits by the head over the whole vocabulary, which is there until its rows are chosen."""
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
    """The score of two tokens is the probability of the first, whatever else a checkpoint says of it."""
    activation = "sigmoid" if tokens.no is not None else _declared_activation(directory)
    return Labels((tokenizer.decode([tokens.yes]).strip() or "relevant",), "sigmoid", activation)


def _declared_activation(directory: Path) -> Activation:
    return ranking_activation(read_config(directory), 1, str(directory))
