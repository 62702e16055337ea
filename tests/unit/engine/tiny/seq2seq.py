"""Tiny encoder-decoders with random weights, saved to disk as the real ones are."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from nightshift_engine import Completion, Engine, Request, SamplingParams
from nightshift_engine.loading.model import LoadedModel
from nightshift_engine.seq2seq.model import load_seq2seq, seq2seq_config
from tests.unit.engine.tiny.decoders import BOS, EOS, byte_tokenizer, complete, engine_config

VOCAB_SIZE = 264
START, PAD = 261, 262
LANGUAGES = {"en_XX": 258, "fr_XX": 259, "de_DE": 260}
BLOCK_SIZE = 4
POSITIONS = 64

_BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": POSITIONS,
}
_T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "n_positions": POSITIONS,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", _T5 | {"feed_forward_proj": "relu", "tie_word_embeddings": True}),
    "flan-t5": ("t5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("mt5", _T5),
    "bart": ("bart", _BART),
    "mbart": ("mbart", _BART | {"scale_embedding": True}),
    "marian": ("marian", _BART | {"scale_embedding": True}),
    "m2m_100": ("m2m_100", _BART | {"scale_embedding": True, "pad_token_id": 1}),
    "pegasus": ("pegasus", _BART),
}


def save_seq2seq(directory: Path, family: str, *, has_languages: bool = False, **overrides: Any) -> Path:
    """A checkpoint of a family; `overrides` are of its configuration and its generation config."""
    model_type, settings = FAMILIES[family]
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "decoder_start_token_id": START}
    generation = {name: overrides.pop(name) for name in [*overrides] if not hasattr_config(model_type, name)}
    config = AutoConfig.for_model(model_type, **{**ids, **settings, "vocab_size": VOCAB_SIZE, **overrides})
    torch.manual_seed(1)
    model = AutoModelForSeq2SeqLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed_positions" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    if hasattr(model, "final_logits_bias"):
        torch.nn.init.normal_(model.final_logits_bias)
    model.generation_config.forced_eos_token_id = None
    for field, value in generation.items():
        setattr(model.generation_config, field, value)
    model.save_pretrained(directory)
    tokenizer = byte_tokenizer()
    if has_languages:
        tokenizer.add_special_tokens({"additional_special_tokens": [*LANGUAGES]})
    tokenizer.save_pretrained(directory)
    return directory


def hasattr_config(model_type: str, name: str) -> bool:
    return hasattr(AutoConfig.for_model(model_type), name)


def make_seq2seq_engine(directory: Path, **overrides: Any) -> Engine:
    """An engine over a model that is loaded once."""
    config = seq2seq_config(engine_config(directory, **({"block_size": BLOCK_SIZE} | overrides)))
    return Engine.over(replace(_load_once(directory), config=config))


@lru_cache(maxsize=16)
def _load_once(directory: Path) -> LoadedModel:
    return load_seq2seq(engine_config(directory))


def translation(id: str, source: list[int], *, start: tuple[int, ...] = (START,), **facts: Any) -> Request:
    """Greedy, unless `sampling` says otherwise."""
    sampling = facts.pop("sampling", None) or SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return Request(id, start, sampling, source_token_ids=source, **facts)


def translate(engine: Engine, sources: list[list[int]], **facts: Any) -> list[Completion]:
    """Completions of all sources together, as `translation` makes requests of them."""
    requests = (translation(str(number), source, **facts) for number, source in enumerate(sources))
    return complete(engine, *requests)


def tokens_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def generate(
    directory: Path, sources: list[list[int]], max_tokens: int = 12, **settings: Any
) -> list[list[int]]:
    """Answers of `generate` to each source alone, in float32, after the decoder's first token."""
    model = AutoModelForSeq2SeqLM.from_pretrained(directory, dtype=torch.float32)
    settings = {"eos_token_id": None, **settings}
    return [
        model.generate(
            torch.tensor([source]),
            attention_mask=torch.ones(1, len(source), dtype=torch.long),
            max_new_tokens=max_tokens,
            num_beams=1,
            do_sample=False,
            **settings,
        )[0, 1:].tolist()
        for source in sources
    ]


def until_the_end(tokens: list[int], ends: set[int]) -> list[int]:
    first = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: first + 1]
