"""Refuses values of a checkpoint's fields with which the libraries below would fail without naming them.

Fields that are not named here are the libraries' to judge.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

SIZE_MAX: Final = 2**31 - 1
DEPTH_MAX: Final = 64
"""Depth of objects and lists in one another; those of real checkpoints have 8."""
SHOWN_CHARS_MAX: Final = 80


def problem_of(values: Mapping[str, Any]) -> str | None:
    """The first field that cannot be what it is, after "the file has"; None: none is known to be wrong."""
    return next(_problems(values, "", 0), None)


def _is_size(value: Any) -> bool:
    """Whether a value is a size, or sizes by layer or by name; None among them is a layer without one."""
    if isinstance(value, list | dict):
        return all(map(_is_size, value.values() if isinstance(value, dict) else value))
    return value is None or (type(value) is int and 1 <= value <= SIZE_MAX)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_ids(value: Any) -> bool:
    return all(type(item) is int for item in (value if isinstance(value, list) else [value]))


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, list) and _are_ids(word) for word in value)


@dataclass(frozen=True)
class _Rule:
    fields: re.Pattern[str]
    allows: Callable[[Any], bool]
    wanted: str


_RULES: Final = tuple(
    _Rule(re.compile(fields), allows, wanted)
    for fields, allows, wanted in (
        (r"(text|vision|audio|llm|language)_config", lambda value: isinstance(value, dict), "an object"),
        (
            r"(decoder_|encoder_)?(attention_heads|d_ff|d_kv|d_model|embed_dim|ffn_dim|head_dim|hidden_size"
            r"|image_size|intermediate_size|max_position_embeddings|n_embd|n_head|n_layer|n_positions"
            r"|num_attention_heads|num_channels|num_heads|num_hidden_layers|num_layers|patch_size|vocab_size)"
            r"|(decoder|encoder)_layers",
            lambda value: _is_size(value) and value not in ([], {}),
            f"a whole number of 1 to {SIZE_MAX}",
        ),
        (
            r"type_vocab_size|projection_dim|num_(local_)?experts(_per_tok)?|n_routed_experts",
            lambda value: type(value) is int and 0 <= value <= SIZE_MAX,
            f"a whole number of 0 to {SIZE_MAX}",
        ),
        (
            r"((rms|layer|batch|group)_?norm|norm)_(eps|epsilon)",
            lambda value: _is_number(value) and 0 <= value < 1,
            "a number of 0 to 1",
        ),
        (
            r"(.+_)?dropout(_rate|_prob|_p)?|(attn|embd|resid)_pdrop",
            lambda value: isinstance(value, bool) or (_is_number(value) and 0 <= value <= 1),
            "a number of 0 to 1",
        ),
        (r"rope_theta", lambda value: _is_number(value) and value > 0, "a number above 0"),
        (
            r"(.+_)?(bos|eos|pad|sep|cls|mask|start)_token_id|suppress_tokens",
            _are_ids,
            "a token id, or a list of them",
        ),
        (r"bad_words_ids", _are_words, "a list of lists of token ids"),
        (r"top_k", lambda value: type(value) is int and value >= -1, "a whole number of 0 or more, or -1"),
        (
            r"no_repeat_ngram_size|(min|max)_length|(min|max)_new_tokens|num_beams",
            lambda value: type(value) is int and value >= 0,
            "a whole number of 0 or more",
        ),
    )
)


def _problems(values: Mapping[str, Any], place: str, depth: int) -> Iterator[str]:
    for name, value in values.items():
        yield from _within(value, f"{place}{name}", depth + 1)  # first: rules need not bear any depth
        rule = next((rule for rule in _RULES if rule.fields.fullmatch(name)), None)
        if rule is not None and value is not None and not rule.allows(value):
            yield f"{place}{name} {_shown(value)}; it must be {rule.wanted}"


def _within(value: Any, field: str, depth: int) -> Iterator[str]:
    """Yields the problems of what a value holds."""
    if isinstance(value, float) and math.isnan(value):
        yield f"{field} NaN, which is no number"
    elif depth > DEPTH_MAX:
        yield f"{field[:SHOWN_CHARS_MAX]}…, nested more than {DEPTH_MAX} deep"
    elif isinstance(value, dict):
        yield from _problems(value, f"{field}.", depth)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict | list | float):
                yield from _within(item, f"{field}[{index}]", depth + 1)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
