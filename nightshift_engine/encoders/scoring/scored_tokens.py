"""By which tokens a generative reranker scores, as its files declare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoint.files import read_object
from ...checkpoint.kinds.logit_score import MODULE, has_token_fields
from ...checkpoint.modules import read_modules
from ...errors import UnsupportedModel
from ...text.tokenizer import Tokenizer

_OWN = "sentence_transformers."
_METHODS = {"from_2_way_softmax": 2, "no_post_processing": 1}
"""Those of vLLM, and how many tokens they take."""


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The tokens whose logits make a score: the first less the second, or the first alone."""

    yes: int
    no: int | None = None

    @classmethod
    def read(cls, directory: Path, config: Any, tokenizer: Tokenizer) -> ScoredTokens:
        """What config.json says, else modules.json. Raises UnsupportedModel or ModelLoadFailed."""
        name = str(directory)
        found = _of_config(config, tokenizer, name) if has_token_fields(config) else _of_module(directory)
        vocabulary = range(config.get_text_config().vocab_size)
        for id in found.ids:
            if type(id) is not int or id not in vocabulary:
                raise UnsupportedModel(name, f"it ranks by the token {id!r}, which its vocabulary has not")
        return found

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
    ids = [tokenizer.token_id(each) if isinstance(each, str) else None for each in tokens]
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
