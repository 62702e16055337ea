"""Weights that would be cast without a scale, and files that are not whole, are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from nightshift_engine import EngineError, Request
from nightshift_engine.checkpoint import stored_tensors
from nightshift_engine.checkpoint.stored_tensors import check_stored_tensors, weight_files
from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from tests.unit.engine.loading.test_model_families import CASES, GPT2_NAMES
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import BASE, complete, greedy, load_engine, save_model
from tests.unit.engine.tiny.encoders import save_checkpoint, tiny_bert

WEIGHT = "model.layers.1.mlp.up_proj.weight"


def store(directory: Path, **tensors: Tensor) -> Path:
    path = directory / "model.safetensors"
    save_file(load_file(path) | tensors, path, metadata={"format": "pt"})
    return directory


def weight(directory: Path, name: str) -> Tensor:
    return load_file(directory / "model.safetensors")[name]


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.uint8, torch.bool, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2],
    ids=str,
)
def test_a_weight_that_would_be_cast_without_its_scale_is_refused_by_name(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    directory = save_model(tmp_path / "model")
    store(directory, **{WEIGHT: weight(directory, WEIGHT).to(dtype)})

    stored_as = str(dtype).removeprefix("torch.")
    refusal = rf"{WEIGHT} in model.safetensors is stored as {stored_as}.*served are float32, float16"
    with pytest.raises(UnsupportedModel, match=refusal):
        load_engine(directory)


def test_weights_in_other_floating_dtypes_are_served(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    for name, dtype in (("up", torch.float16), ("gate", torch.bfloat16), ("down", torch.float64)):
        name = f"model.layers.1.mlp.{name}_proj.weight"
        store(directory, **{name: weight(directory, name).to(dtype)})

    [completion] = complete(load_engine(directory), Request("one", [1, 2], greedy(2)))

    assert len(completion.token_ids) == 2


def test_an_embedders_integer_weights_are_refused_and_its_positions_are_not(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path, tiny_bert())
    store(directory, **{"embeddings.position_ids": torch.arange(64)[None]})
    EncoderModel.load(directory)
    name = "encoder.layer.0.output.dense.weight"
    store(directory, **{name: weight(directory, name).to(torch.int8)})

    with pytest.raises(UnsupportedModel, match=f"{name} in model.safetensors is stored as int8"):
        EncoderModel.load(directory)


@pytest.mark.parametrize(
    ("model_type", "sizes", "names"),
    [
        ("llama", {}, ["model.position_ids"]),
        ("gpt2", CASES["gpt2"], ["transformer.h.0.attn.bias", "h.1.attn.masked_bias"]),
    ],
)
def test_integers_that_old_releases_saved_are_no_weights(
    tmp_path: Path, model_type: str, sizes: dict[str, Any], names: list[str]
) -> None:
    without = GPT2_NAMES if model_type == "gpt2" else ()
    directory = save_model(tmp_path / "model", model_type, without=without, **sizes)
    store(directory, **{name: torch.ones(1, 1, 4, 4, dtype=torch.uint8) for name in names})

    assert load_engine(directory).context_length == 128


def test_a_weight_that_is_called_like_an_old_constant_is_none(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path, tiny_bert())
    name = "encoder.layer.0.attention.bias"  # no model of today has it, so it would be left out
    store(directory, **{name: torch.ones(3, dtype=torch.bool)})

    EncoderModel.load(directory)


def test_the_integers_that_a_family_keeps_are_not_weights(tmp_path: Path) -> None:
    """Every family here: all tensors of its own that are no floating numbers."""
    for case, sizes in CASES.items():
        family = case.split(",")[0]
        without = GPT2_NAMES if family in ("gpt2", "gpt_bigcode") else ()
        settings = {key: value for key, value in (BASE | sizes).items() if key not in without}
        config = AutoConfig.for_model(family, **settings)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        numbers = {key: value for key, value in model.state_dict().items() if not value.is_floating_point()}
        path = tmp_path / "model.safetensors"
        save_file({key: torch.zeros(value.shape, dtype=value.dtype) for key, value in numbers.items()}, path)
        check_stored_tensors(tmp_path, case, config, AutoModelForCausalLM)


class Table(torch.nn.Module):
    """As DeepSeek-V4 sends tokens to experts by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("experts_by_token", torch.zeros(4, dtype=torch.int64))
        self.weight = torch.nn.Parameter(torch.zeros(4))


@pytest.mark.parametrize(
    ("stored", "is_served"),
    [
        ({"experts_by_token": torch.zeros(4, dtype=torch.int32)}, True),
        ({"model.experts_by_token": torch.zeros(4, dtype=torch.int64)}, True),
        ({"weight": torch.zeros(4, dtype=torch.int32)}, False),
        ({"others_by_token": torch.zeros(4, dtype=torch.int64)}, False),
    ],
)
def test_a_table_of_integers_that_the_model_has_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: dict[str, Tensor], is_served: bool
) -> None:
    tensors = dict(Table().named_buffers()) | dict(Table().named_parameters())
    monkeypatch.setattr(stored_tensors, "_tensors_of", lambda *_: tensors)
    save_file(stored, tmp_path / "model.safetensors")

    try:
        check_stored_tensors(tmp_path, "model", None, None)
    except UnsupportedModel:
        assert not is_served
    else:
        assert is_served


def with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def a_tensor(**more: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "data_offsets": [0, 0], **more}}).encode()


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (lambda content: content[:-100], r"is incomplete: it has \d+ bytes of \d+; download it again"),
        (lambda content: content[:50], "is incomplete or no safetensors file"),
        (lambda content: b"", "is incomplete or no safetensors file"),
        (lambda content: b"not weights", "is incomplete or no safetensors file"),
        (lambda content: b"\x02\0\0\0\0\0\0\0[]", "has no safetensors header"),
        (
            lambda content: with_header(b'{"a": ' * 50_000 + b"}" * 50_000),
            "has no safetensors header: Recurs",
        ),
        (lambda content: with_header(a_tensor()), "has no safetensors header: KeyError"),
        (lambda content: with_header(a_tensor(shape=[-1])), "a tensor has a shape that is no list of sizes"),
        (lambda content: content + b"\0", "is incomplete: it has"),
        (
            lambda content: POINTER + b"\n",
            r"is a Git LFS pointer, not the file itself; fetch it",
        ),
    ],
    ids=["tail", "header", "empty", "text", "list", "deep", "no shape", "shape", "more", "pointer"],
)
@pytest.mark.parametrize("kind", mostly_exhaustive(["decoder", "encoder"], default=["decoder"]))
def test_a_weight_file_that_is_not_whole_is_named(tmp_path: Path, cut: Any, reason: str, kind: str) -> None:
    is_decoder = kind == "decoder"
    directory = save_model(tmp_path / "m") if is_decoder else save_checkpoint(tmp_path / "m", tiny_bert())
    path = directory / "model.safetensors"
    path.write_bytes(cut(path.read_bytes()))

    with pytest.raises(ModelLoadFailed, match=f"model.safetensors .*{reason}"):
        load_engine(directory) if is_decoder else EncoderModel.load(directory)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345"


def test_a_tokenizer_that_git_lfs_has_not_fetched_is_named(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "tokenizer.json").write_bytes(POINTER)

    with pytest.raises(ModelLoadFailed, match=r"tokenizer\.json is a Git LFS pointer"):
        load_engine(directory)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, r"no weights in safetensors \(model.safetensors or model.safetensors.index.json\)"),
        ({"pytorch_model.bin": ""}, "pytorch_model.bin is a pickle, which can run code .* save it as safe"),
        ({"model.safetensors.index.json": "{"}, "model.safetensors.index.json cannot be read"),
        ({"model.safetensors.index.json": "{}"}, "index.json has no weight_map"),
        (
            {"model.safetensors.index.json": json.dumps({"weight_map": {"a": "part-2.safetensors"}})},
            "part-2.safetensors is missing, which model.safetensors.index.json names",
        ),
        *(
            (
                {"model.safetensors.index.json": json.dumps({"weight_map": {"a": beyond}})},
                f"names '{beyond}', which is no file of its directory",
            )
            for beyond in ("../model.safetensors", "/model.safetensors", "other/model.safetensors")
        ),
    ],
)
def test_weights_that_are_not_there_are_said_to_be_missing(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    with pytest.raises(EngineError, match=reason):
        weight_files(tmp_path, "model")


def test_a_weight_of_a_wrong_dtype_is_found_in_every_file_of_an_index(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    odd = {WEIGHT: tensors.pop(WEIGHT).to(torch.int8)}
    save_file(tensors, directory / "part-1.safetensors", metadata={"format": "pt"})
    save_file(odd, directory / "part-2.safetensors", metadata={"format": "pt"})
    weight_map = dict.fromkeys(tensors, "part-1.safetensors") | {WEIGHT: "part-2.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(UnsupportedModel, match=f"{WEIGHT} in part-2.safetensors is stored as int8"):
        load_engine(directory)
