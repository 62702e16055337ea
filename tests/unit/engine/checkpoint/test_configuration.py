"""A configuration that asks for what would be left out is refused by name, and none of transformers' own."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from nightshift_engine.checkpoint.configuration import check_configuration
from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.errors import UnsupportedModel
from tests.unit.engine.tiny.classifiers import change_config, save_classifier
from tests.unit.engine.tiny.decoders import save_model
from tests.unit.engine.tiny.images import save_image_model
from tests.unit.engine.tiny.seq2seq import save_seq2seq


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


def changed(llama: Path, directory: Path, fields: dict[str, Any]) -> str:
    """None takes a field away."""
    config = json.loads((llama / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    for path in llama.glob("[!c]*"):
        (directory / path.name).symlink_to(path)
    return str(directory)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rope_parameters": {"rope_type": "new", "factor": 2.0}}, "rotary embedding is of the type 'new'; "),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "new", "factor": 2.0}},
            "rotary embedding is of the type 'new'; transformers has .*dynamic, linear",
        ),
        ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "has factor 2.0, which the type"),
        ({"hidden_act": "new"}, "hidden_act 'new'; transformers has gelu"),
        ({"quantization": {"bits": 4}}, "quantised .quantization in config.json"),
        (
            {"attn_logit_softcapping": 30.0},
            "attn_logit_softcapping 30.0, which LlamaConfig has not: it would",
        ),
        ({"logit_scale": 0.5}, "logit_scale 0.5"),
        ({"qk_norm": True}, "qk_norm True"),
        ({"sliding_window": 4}, "sliding_window 4, which LlamaConfig has not"),
    ],
    ids=str,
)
def test_what_would_be_left_out_is_refused_by_name(
    llama: Path, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        read_kind(changed(llama, tmp_path, fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "factor": 1.0, "rope_theta": 1e4}},
        {"logit_scale": 1.0, "attn_logit_softcapping": None, "qk_norm": False},
        {"sliding_window": 4, "use_sliding_window": False},
        {"sliding_window": 10**6},
        {"hidden_act": "gelu", "notes": {"anything": 1}},
    ],
    ids=str,
)
def test_what_changes_nothing_is_served(llama: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    assert read_kind(changed(llama, tmp_path, fields)).name == "decoder"


def test_the_activation_of_each_other_kind_is_looked_at_too(tmp_path: Path) -> None:
    kinds = {
        "classifier": (save_classifier(tmp_path / "bert"), "hidden_act"),
        "images": (save_image_model(tmp_path / "vit", "ViT"), "hidden_act"),
        "translation": (save_seq2seq(tmp_path / "marian", "marian"), "activation_function"),
    }
    for directory, field in kinds.values():
        with pytest.raises(UnsupportedModel, match=f"{field} 'new'"):
            read_kind(str(change_config(directory, **{field: "new"})))


def test_no_decoder_of_transformers_is_refused_for_what_others_have_not() -> None:
    tried = 0
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = CONFIG_MAPPING[name]()
        except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError):  # it has no defaults
            continue
        check_configuration(config, name)
        tried += 1

    assert tried > 100
