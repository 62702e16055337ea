import json
from pathlib import Path

import pytest

from nightshift.demo import DEMO_MODEL_ID, demo_model_path
from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import check_distinct, find, model_id

FILES = ("config.json", "tokenizer.json", "model.safetensors")


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    return tmp_path / "huggingface" / "hub"


def a_directory(path: Path, *files: str) -> Path:
    path.mkdir(parents=True)
    for name in files:
        (path / name).write_text("{}")
    return path


def test_a_directory_is_served_under_the_last_part_of_its_path(tmp_path, monkeypatch):
    a_directory(tmp_path / "models" / "tiny-llama", *FILES)
    monkeypatch.chdir(tmp_path)
    found = find("models/tiny-llama")
    assert (found.id, found.reference) == ("tiny-llama", str(tmp_path / "models" / "tiny-llama"))


def test_the_demo_model_is_complete():
    assert find(str(demo_model_path())).id == DEMO_MODEL_ID


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("config.json", "config.json is missing"),
        ("tokenizer.json", "the tokenizer is missing"),
        ("model.safetensors", "only safetensors are loaded"),
    ],
)
def test_what_a_directory_lacks_is_named(tmp_path, missing, complaint):
    directory = a_directory(tmp_path / "m", *(name for name in FILES if name != missing))
    with pytest.raises(ConfigurationError, match=complaint):
        find(str(directory))


def test_pickled_weights_do_not_count(tmp_path):
    directory = a_directory(tmp_path / "m", "config.json", "tokenizer.json", "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="only safetensors are loaded"):
        find(str(directory))


def test_every_part_of_divided_weights_must_be_there(tmp_path):
    directory = a_directory(
        tmp_path / "m", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors"
    )
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    with pytest.raises(ConfigurationError, match=r"weights are missing \(model-00002-of-00002"):
        find(str(directory))


@pytest.mark.parametrize("name", ["/nowhere/llama", "./llama", "../llama", "a/b/c"])
def test_a_path_to_nothing_is_no_hub_id(name):
    with pytest.raises(ConfigurationError, match="there is no model at"):
        find(name)


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigurationError, match="name the directory"):
        find(str(tmp_path / "model.safetensors"))


def test_a_comma_in_a_path_is_refused_because_lists_of_models_are_written_with_it(tmp_path):
    with pytest.raises(ConfigurationError, match="comma"):
        find(str(a_directory(tmp_path / "a,b", *FILES)))


@pytest.mark.parametrize("name", ["gpt2", "org/Llama-3.2_1B"])
def test_a_hub_id_keeps_its_name_and_may_still_have_to_be_downloaded(name):
    found = find(name)
    assert (found.id, found.reference, found.directory) == (name, name, None)


def test_a_downloaded_hub_id_is_found_in_the_cache(a_cache_of_its_own):
    snapshot = a_directory(a_cache_of_its_own / "models--org--tiny" / "snapshots" / "abc", "config.json")
    assert find("org/tiny").directory == snapshot


def test_offline_a_hub_id_that_was_not_downloaded_is_refused(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigurationError, match="has not been downloaded"):
        find("org/tiny")


def test_a_model_is_called_as_its_path_was_written_and_a_link_gives_it_a_name(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "minilm").symlink_to(tmp_path / "model")

    assert model_id(str(tmp_path / "minilm")) == "minilm"
    assert model_id(f"{tmp_path}/model/") == "model"
    assert model_id(f"{tmp_path}/minilm/../model") == "model"
    assert model_id("org/name") == "org/name"


def test_two_models_may_not_have_one_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'model'"):
        check_distinct([str(tmp_path / "a" / "model"), str(tmp_path / "b" / "model")])
    check_distinct([str(tmp_path / "a" / "model"), str(tmp_path / "b" / "other"), "org/model"])
