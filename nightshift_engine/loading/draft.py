"""The configuration of a draft model, and what it must have in common with the model that it drafts for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..checkpoint.kinds import DECODER, read_checkpoint, require_kind
from ..core.config import EngineConfig
from ..errors import EngineError, InvalidConfig
from ..text.tokenizer import Tokenizer

READ_TOKENS_MAX = 256
"""Tokens that a draft model reads in one step: what the step waits for at most besides its drafts."""


def draft_config(config: EngineConfig, context_length: int | None = None) -> EngineConfig:
    """The draft model's own configuration, by that of the model. It has the same context."""
    assert config.draft_model is not None, "there is a draft model"
    return replace(
        config,
        model=config.draft_model,
        revision=None,
        draft_model=None,
        speculation="off",
        adapters=(),
        max_model_len=context_length or config.max_model_len,
        max_num_batched_tokens=min(READ_TOKENS_MAX, config.max_num_batched_tokens),
    )


def check_draft(config: EngineConfig, tokenizer: Tokenizer) -> None:
    """Raises `InvalidConfig` if the draft model's files are of no decoder with the model's vocabulary."""
    draft = draft_config(config).model
    with naming_draft(config):
        require_kind(draft, None, DECODER)
        ours, theirs = (
            read_checkpoint(model, revision).config.get_text_config().vocab_size
            for model, revision in ((config.model, config.revision), (draft, None))
        )
        if ours != theirs:
            raise InvalidConfig(f"it has logits for {theirs} tokens, and {config.model!r} for {ours}")
        if num_other := tokenizer.num_other(Tokenizer.load(draft)):
            raise InvalidConfig(f"{num_other} tokens are not, or have other ids, in one of the tokenizers")


@contextmanager
def naming_draft(config: EngineConfig) -> Iterator[None]:
    """Says of an error that it is the draft model's."""
    try:
        yield
    except EngineError as error:
        raise InvalidConfig(f"draft_model {config.draft_model!r} cannot be used: {error}") from error
