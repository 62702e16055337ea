"""Files that would make another model of a checkpoint, or none, are refused by name and with what to do."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import EngineError, Request
from nightshift_engine.checkpoint.files import MODULES_MAX, Module, read_modules
from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.errors import InvalidTokenIds, ModelLoadFailed, UnsupportedModel
from tests.unit.engine.tiny.decoders import byte_tokenizer, greedy, load_engine, save_model


def change_config(directory: Path, **fields: Any) -> Path:
    """None is written as it is."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return directory


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_is_refused_with_what_to_do_instead(tmp_path: Path, file: str, is_alone: bool) -> None:
    directory = tmp_path if is_alone else save_model(tmp_path / "model")
    (directory / file).write_text("{}")

    with pytest.raises(UnsupportedModel, match=f"{file} says .* an adapter.*merge it into the model"):
        load_engine(directory)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 2}},
            r"quantised \(.*2 bits.*made from",
        ),
        ({"quantization_config": {"quant_method": "a new one"}}, r"quantised \(.*'a new one'"),
        ({"quantization_config": {"bits": 4}}, r"quantised \(.*'of no name'"),
        ({"text_config": {"quantization_config": {"quant_method": "hqq"}}}, r"quantised \(.*'hqq'"),
        ({"compression_config": {"quant_method": "x"}}, r"quantised \(compression_config "),
        ({"dtype": "int8"}, "weights are of dtype 'int8'; served are float32, float16, bfloat16, float64"),
        ({"dtype": None, "torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'"),
        ({"model_type": "unheard_of"}, "transformers .* has no model of type 'unheard_of'$"),
        (
            {"model_type": "unheard_of", "auto_map": {"AutoConfig": "code.Config"}},
            r"no model of type 'unheard_of', and the code in its repository .* is never run",
        ),
        ({"architectures": "LlamaForCausalLM"}, r"architectures 'LlamaForCausalLM'; it must be a list of"),
        ({"architectures": [1]}, r"architectures \[1\]; it must be a list of names"),
        ({"id2label": ["ham", "spam"]}, "id2label in config.json is no map from numbers to texts"),
        ({"id2label": {"one": "ham"}}, "id2label in config.json is no map from numbers to texts"),
        ({"num_labels": 10**9}, "num_labels 1000000000; at most 1000000 are served"),
    ],
)
def test_a_configuration_of_what_is_not_served_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    directory = change_config(save_model(tmp_path / "model"), **fields)

    with pytest.raises(EngineError, match=reason):
        load_engine(directory)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"auto_map": 7}, "auto_map 7; it must be an object"),
        ({"auto_map": ["code.Model"]}, r"auto_map \['code.Model'\]; it must be an object"),
        ({"model_type": 7}, "model_type 7; it must be a text"),
        ({"num_labels": "two"}, "num_labels 'two'; it must be a whole number of 0 or more"),
        ({"hidden_size": -64}, "hidden_size -64; it must be a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps NaN, which is no number"),
        ({"tie_word_embeddings": "x"}, "Validation error for field 'tie_word_embeddings'"),
    ],
    ids=str,
)
def test_a_configuration_that_is_none_is_refused_by_its_field(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    directory = change_config(save_model(tmp_path / "model"), **fields)

    with pytest.raises(EngineError, match=rf"config\.json.*{reason}"):
        read_kind(str(directory))


def test_what_would_be_read_without_end_is_refused_by_name(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    with (directory / "tokenizer.json").open("ab") as file:
        file.truncate(65 * 1024 * 1024)

    with pytest.raises(ModelLoadFailed, match=r"tokenizer\.json has 68157440 bytes, and at most 67108864"):
        read_kind(str(directory))

    (directory / "tokenizer.json").unlink()
    os.mkfifo(directory / "tokenizer.json")

    with pytest.raises(ModelLoadFailed, match=r"tokenizer\.json is neither a file nor a directory"):
        read_kind(str(directory))


@pytest.mark.parametrize(
    "fields",
    [
        {"quantization_config": None},
        {"dtype": None},
        {"auto_map": {"AutoModelForCausalLM": "code.Model"}},
    ],
)
def test_a_configuration_that_only_looks_unusual_is_served(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert read_kind(str(change_config(save_model(tmp_path / "model"), **fields))).name == "decoder"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[1]", "config.json is no JSON object"),
        ('{"a": ' * 100_000 + "1" + "}" * 100_000, "maximum recursion depth"),
        (json.dumps({"a": "b" * (64 * 2**20)}), r"it has 671\d+ bytes, and at most 67108864 are read"),
    ],
    ids=["cut", "empty", "list", "deep", "large"],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(ModelLoadFailed, match=rf"config\.json .*{reason}|{reason}"):
        read_kind(str(tmp_path))


@pytest.mark.parametrize("name", ["nowhere/at/all", "/nowhere", "no where"])
def test_a_directory_that_does_not_exist_is_said_not_to(name: str) -> None:
    with pytest.raises(ModelLoadFailed, match=f"{name}': it does not exist"):
        load_engine(Path(name))


def test_a_directory_without_a_configuration_is_said_to_have_none_or_to_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"there is no config\.json in its directory"):
        load_engine(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadFailed, match="it is a file, not a directory"):
        load_engine(tmp_path / "model.safetensors")


def test_a_chat_template_that_is_no_jinja_is_refused_with_its_line(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "chat_template.jinja").write_text(
        "{% for message in messages %}\n{{ message. }}\n{% endfor %}"
    )

    with pytest.raises(
        ModelLoadFailed, match=r"chat template cannot be compiled: .*\(line 2 of the template"
    ):
        load_engine(directory)


def test_a_model_without_a_chat_template_is_served(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "chat_template.jinja").unlink()

    assert load_engine(directory).tokenizer.chat_template == ""


def test_a_tokenizer_with_more_tokens_than_the_model_embeds_is_refused(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model", vocab_size=200, eos_token_id=1, bos_token_id=2)

    with pytest.raises(UnsupportedModel, match="tokenizer has 258 tokens, and the model embeds 200"):
        load_engine(directory)


def test_tokens_added_to_the_tokenizer_alone_are_logged_and_refused_in_prompts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_model(tmp_path / "model")
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(directory)

    engine = load_engine(directory)

    assert "1 added tokens without an embedding (<pad>); prompts with them are refused" in caplog.text
    with pytest.raises(InvalidTokenIds, match="token id 258, outside the vocabulary of 258"):
        engine.add(Request("one", engine.tokenizer.encode("a<pad>"), greedy(1)))


POOLING = "sentence_transformers.models.Pooling"


def test_modules_have_types_and_folders(tmp_path: Path) -> None:
    assert read_modules(tmp_path, "m") is None

    listed = [{"idx": 0, "type": "t.Transformer", "path": ""}, {"type": POOLING, "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))

    assert read_modules(tmp_path, "m") == [
        Module("t.Transformer", tmp_path),
        Module(POOLING, tmp_path / "1_Pooling"),
    ]
    assert [module.kind for module in read_modules(tmp_path, "m") or ()] == ["Transformer", "Pooling"]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ("{", "Expecting property name"),
        ("[" * 10_000, "recursion"),
        ("\udcff", "utf-8"),
        ({}, "it is no list of up to"),
        (None, "it is no list of up to"),
        ([{"type": POOLING, "path": "p"}] * (MODULES_MAX + 1), f"it is no list of up to {MODULES_MAX}"),
        ([7], "module 0 is no object"),
        ([{"path": ""}], "module 0 has type None, which is no text"),
        ([{"type": POOLING, "path": 7}], "module 0 has path 7, which is no text"),
        ([{"type": POOLING, "path": "../other"}], r"module 0 has path '\.\./other', which is outside"),
        ([{"type": POOLING, "path": "a/../../b"}], "module 0 has path .* which is outside its directory"),
        ([{"type": POOLING, "path": "/etc"}], "module 0 has path '/etc', which is outside its directory"),
        ([{"type": POOLING, "path": "a\0b"}], "module 0 has path .* which is outside its directory"),
    ],
    ids=lambda value: str(value)[:40].replace("\0", ""),
)
def test_a_list_that_is_none_is_refused_with_the_place(tmp_path: Path, listed: Any, reason: str) -> None:
    text = listed if isinstance(listed, str) else json.dumps(listed)
    (tmp_path / "modules.json").write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(ModelLoadFailed, match=rf"modules\.json cannot be read: .*{reason}"):
        read_modules(tmp_path, "m")
