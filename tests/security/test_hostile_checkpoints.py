"""Checkpoints of every kind whose files are broken, odd or meant to harm are refused by file and by field."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nightshift.cli.demo import demo_model_path
from nightshift.errors import ConfigurationError
from nightshift.process.settings import WorkerSettings
from tests.e2e.models.bad_inputs import save_models
from workers.serving.loading import open_models

KINDS = ("demo", "m2m", "embedder", "reranker", "animals")
QUICK = ("demo", "m2m", "embedder")  # one of each way to load
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MEMORY_MIB_MAX = 256


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    shutil.copytree(demo_model_path(), folder / "demo")
    return folder


@pytest.fixture(
    params=[
        *QUICK,
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS if kind not in QUICK),
    ]
)
def directory(request: pytest.FixtureRequest, models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models / request.param, tmp_path / request.param))


def refusal_of(directory: Path, engine_process: bool | None = False) -> str:
    """The operator's message, made without large memory on the way. A process of its own for the engine takes
    3.5 s of CPU to start.
    """
    Path("/proc/self/clear_refs").write_text("5")
    before_mib = _status_mib("VmRSS")
    settings = WorkerSettings(
        models=(str(directory),), device="cpu", dtype="float32", engine_process=engine_process
    )
    with pytest.raises(ConfigurationError) as caught:
        open_models(settings, lambda _: None)
    assert _status_mib("VmHWM") - before_mib <= MEMORY_MIB_MAX
    said = caught.value.message
    assert said.startswith(f"The model '{directory}' cannot be served: ")
    assert "loading it failed with" not in said, "an error of a library, without the file or the field"
    return said


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    edit(tensors)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def first(tensors: dict[str, torch.Tensor]) -> str:
    """A matrix that every answer depends on."""
    return next(
        name for name, tensor in sorted(tensors.items()) if tensor.ndim == 2 and "position" not in name
    )


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "\0", "[" * 10_000, '{"a":' * 10_000],
    ids=lambda content: repr(content[:9]),
)
def test_a_config_that_is_no_json_object(directory: Path, content: str) -> None:
    (directory / "config.json").write_text(content)

    assert "config.json" in refusal_of(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 2**62),
        ("hidden_size", -1),
        ("hidden_size", "64"),
        ("d_model", 0),
        ("num_hidden_layers", float("nan")),
        ("architectures", "Model"),
        ("auto_map", [1]),
        ("model_type", ["bert"]),
        ("model_type", "unheard_of"),
        ("id2label", {"0": "a", "x": "b"}),
        ("pad_token_id", "<pad>"),
    ],
)
def test_a_field_that_cannot_be_what_it_is(directory: Path, field: str, value: Any) -> None:
    change(directory / "config.json", **{field: value})

    said = refusal_of(directory)

    assert field in said or str(value) in said


def test_weights_that_are_cut_short(directory: Path) -> None:
    data = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(data[: len(data) // 2])

    assert f"{WEIGHTS} is incomplete" in refusal_of(directory)


def test_weights_that_are_missing(directory: Path) -> None:
    gone = first(load_file(directory / WEIGHTS))
    rewrite(directory, lambda tensors: tensors.pop(gone))

    assert gone.split(".")[-2] in refusal_of(directory, engine_process=None)


UNFIT: dict[str, tuple[Callable[[dict[str, torch.Tensor], str], object], str]] = {
    "another shape": (
        lambda tensors, name: tensors.update({name: tensors[name][:-1].contiguous()}),
        "have another shape|tokenizer has",
    ),
    "no numbers": (lambda tensors, name: tensors[name].fill_(float("nan")), "(?i)nan"),
    "of nothing": (lambda tensors, _: tensors.update({"of.another": torch.ones(2, 2)}), "of.another"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_weights_that_do_not_fit(directory: Path, what: str) -> None:
    edit, said = UNFIT[what]
    rewrite(directory, lambda tensors: edit(tensors, first(tensors)))

    assert re.search(said, refusal_of(directory))


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", "..", ""])
def test_an_index_that_names_what_is_no_file_of_the_directory(directory: Path, file: str) -> None:
    (directory / WEIGHTS).unlink()
    (directory / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))

    assert INDEX in refusal_of(directory)


def test_a_pickle_is_never_read(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")

    assert "pytorch_model.bin is a pickle" in refusal_of(directory)


def test_a_device_in_place_of_a_file_is_not_read(directory: Path) -> None:
    os.mkfifo(directory / "merges.txt")

    assert "merges.txt is neither a file nor a directory" in refusal_of(directory)


def test_code_beside_a_model_is_not_run(directory: Path, tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    (directory / "code.py").write_text(f"open({str(trace)!r}, 'w')\nclass Model: pass\nclass Config: pass\n")
    change(
        directory / "config.json",
        model_type="unheard_of",
        auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"},
    )

    assert "auto_map in config.json) is never run" in refusal_of(directory)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 10_000, '{"a":' * 10_000], ids=lambda content: repr(content[:9])
)
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_read(models: Path, tmp_path: Path, file: str, content: str) -> None:
    for kind in ("demo", "m2m", "embedder", "reranker"):
        directory = Path(shutil.copytree(models / kind, tmp_path / kind))
        (directory / file).write_text(content)

        assert file in refusal_of(directory), kind


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 10_000, '{"image_std": "x"}'], ids=lambda content: repr(content[:9])
)
def test_a_preprocessor_that_cannot_be_read(models: Path, tmp_path: Path, content: str) -> None:
    directory = Path(shutil.copytree(models / "animals", tmp_path / "animals"))
    (directory / "preprocessor_config.json").write_text(content)

    said = refusal_of(directory)

    assert "preprocessor_config.json" in said or "image processor" in said


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"eos_token_id": "x"}, "eos_token_id 'x'"),
        ({"bad_words_ids": [7]}, "bad_words_ids [7]"),
        ({"no_repeat_ngram_size": "3"}, "no_repeat_ngram_size '3'"),
        ({"suppress_tokens": [None]}, "suppress_tokens [None]"),
        ({"min_length": -1}, "min_length -1"),
        ({"top_p": float("nan")}, "top_p NaN"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["demo", "m2m"])
def test_a_generation_config_that_cannot_be_followed(
    models: Path, tmp_path: Path, kind: str, fields: dict[str, Any], named: str
) -> None:
    directory = Path(shutil.copytree(models / kind, tmp_path / kind))
    (directory / "generation_config.json").write_text(json.dumps(fields))

    assert f"generation_config.json has {named}" in refusal_of(directory)


def test_modules_that_lie_in_another_directory(models: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(models / "embedder", tmp_path / "embedder"))
    path = directory / "modules.json"
    listed = json.loads(path.read_text())
    listed[1]["path"] = "../other/1_Pooling"
    path.write_text(json.dumps(listed))

    assert "modules.json cannot be read: module 1 has path '../other/1_Pooling'" in refusal_of(directory)


@pytest.mark.parametrize("value", ["x", [7], -1, 0, True])
def test_a_longest_text_that_is_no_number(models: Path, tmp_path: Path, value: Any) -> None:
    directory = Path(shutil.copytree(models / "embedder", tmp_path / "embedder"))
    change(directory / "tokenizer_config.json", model_max_length=value)

    assert f"tokenizer_config.json has model_max_length {value!r}" in refusal_of(directory)


def test_a_tokenizer_whose_tokens_the_model_does_not_embed(models: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(models / "embedder", tmp_path / "embedder"))
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"]["cls"][1] = 5000
    path.write_text(json.dumps(tokenizer))

    assert "what its tokenizer makes of a text" in refusal_of(directory)


def test_a_rotary_embedding_of_no_type(models: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(models / "demo", tmp_path / "demo"))
    change(directory / "config.json", rope_parameters={"rope_type": [7], "rope_theta": 10_000.0})

    assert "rotary embedding is of the type [7]" in refusal_of(directory)
