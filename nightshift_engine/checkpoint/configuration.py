"""Refuses fields of a configuration that change results and that the model's own class does not have.

Such a checkpoint would run, and answer something else than it was trained to.
"""

from collections.abc import Collection, Iterator
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ..errors import UnsupportedModel

ACTIVATIONS = (
    "activation",
    "activation_function",
    "dense_act_fn",
    "hidden_act",
    "hidden_activation",
    "pooler_act",
)
ROPES = {"default", "axial", *ROPE_INIT_FUNCTIONS}
"""The second one is that of images."""
ROPE_SCALES = ("beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor", "low_freq_factor")
"""Fields for which a rotary embedding of the type "default" has no use."""
CHANGES_RESULTS: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "position_embedding_type": ("absolute", "rope", "rotary"),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "residual_multiplier": (1,),
    "scale_depth": (),
    "scale_emb": (1,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
}
"""Fields of some families, each with the values that change nothing."""


def check_configuration(config: PreTrainedConfig, name: str) -> None:
    """Raises `UnsupportedModel` naming the field."""
    for part in _with_parts(config):
        known = _known(type(part))
        for problem in (*_of_activations(part, known), *_of_ropes(part), *_of_unused(part, known)):
            raise UnsupportedModel(name, problem)


def _known(config_class: type[PreTrainedConfig]) -> set[str]:
    """Names of the fields and of what a class keeps beside them."""
    try:
        return {*dir(config_class), *vars(config_class())}
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError):  # it has no defaults
        return {*dir(config_class)}


def _with_parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for part in (getattr(config, name, None) for name in config.sub_configs):
        if isinstance(part, PreTrainedConfig):
            yield from _with_parts(part)


def _of_activations(config: PreTrainedConfig, known: Collection[str]) -> Iterator[str]:
    for field in ACTIVATIONS:
        value = getattr(config, field, None) if field in known else None
        if isinstance(value, str) and value not in ACT2FN:
            yield f"its configuration has {field} {value!r}; transformers has {', '.join(ACT2FN)}"


def _of_ropes(config: PreTrainedConfig) -> Iterator[str]:
    given = getattr(config, "rope_parameters", None) or {}
    for rope in [given] if "rope_type" in given else given.values():
        kind = rope.get("rope_type", "default") if isinstance(rope, dict) else "default"
        if not isinstance(kind, str) or kind not in ROPES:
            yield f"its rotary embedding is of the type {kind!r}; transformers has {', '.join(sorted(ROPES))}"
        for key in ROPE_SCALES if kind == "default" and isinstance(rope, dict) else ():
            if rope.get(key) not in (None, 1):
                yield f"its rotary embedding has {key} {rope[key]!r}, which the type 'default' does not use"


def _of_unused(config: PreTrainedConfig, known: Collection[str]) -> Iterator[str]:
    left_out = f"which {type(config).__name__} has not: it would be left out"
    for field in CHANGES_RESULTS.keys() & vars(config).keys() - known:
        value = getattr(config, field)
        if value is not None and value not in CHANGES_RESULTS[field]:
            yield f"its configuration has {field} {value!r}, {left_out}"
    own = vars(config)
    window, longest = own.get("sliding_window"), own.get("max_position_embeddings")
    if "sliding_window" in known or not own.get("use_sliding_window", True):
        return
    if isinstance(window, int) and isinstance(longest, int) and window < longest:
        yield f"its configuration has sliding_window {window}, {left_out}"
