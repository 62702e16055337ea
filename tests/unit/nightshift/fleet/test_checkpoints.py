import json
from pathlib import Path

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import (
    Adapter,
    check_distinct,
    check_references,
    find,
    model_id,
    split_adapters,
)

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
    checkpoint = find("models/tiny-llama")
    assert (checkpoint.id, checkpoint.reference) == ("tiny-llama", str(tmp_path / "models" / "tiny-llama"))


def test_the_demo_model_is_complete():
    assert find(str(demo_model_path())).id == DEMO_MODEL_ID


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (FILES[1:], "config.json is missing"),
        ((FILES[0], FILES[2]), "the tokenizer is missing"),
        (FILES[:2], "only safetensors are loaded"),
        ((*FILES[:2], "pytorch_model.bin"), "only safetensors are loaded"),  # pickled weights do not count
    ],
)
def test_what_a_directory_lacks_is_named(tmp_path, files, complaint):
    directory = a_directory(tmp_path / "m", *files)
    with pytest.raises(ConfigurationError, match=complaint):
        find(str(directory))


@pytest.mark.parametrize("name", ["finetuned", "sum=finetuned", "chat+finetuned"])
def test_an_adapter_that_is_named_as_a_model_says_how_to_name_it(tmp_path, monkeypatch, name):
    a_directory(tmp_path / "finetuned", "adapter_config.json", "adapter_model.safetensors")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"NAME=MODEL\+PATH"):
        find(name)


def test_every_part_of_divided_weights_must_be_there(tmp_path):
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    directory = a_directory(tmp_path / "m", *FILES[:2], parts["a"])
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


@pytest.mark.parametrize(
    ("name", "id"),
    [
        *((name, name) for name in ("gpt2", "org/Llama-3.2_1B")),
        *((f"org/tiny@{revision}", "org/tiny") for revision in ("0a1b2c3", "v1.0", "refs/pr/7")),
    ],
)
def test_a_hub_id_keeps_its_name_without_its_revision_and_may_have_to_be_downloaded(name, id):
    checkpoint = find(name, may_download=True)
    assert (checkpoint.id, checkpoint.reference, checkpoint.directory) == (id, name, None)


def test_of_several_snapshots_the_one_of_the_revision_is_found(a_cache_of_its_own):
    repository = a_cache_of_its_own / "models--org--tiny"
    old, new = (a_directory(repository / "snapshots" / name, "config.json") for name in ("aaa", "bbb"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb")
    (repository / "refs" / "v1").write_text("aaa")

    assert find("org/tiny").directory == new
    assert find("org/tiny@aaa").directory == old
    assert find("org/tiny@v1").directory == old
    assert find("org/tiny@ccc", may_download=True).directory is None


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny@ccc"])
def test_a_hub_id_that_was_not_downloaded_is_refused_unless_workers_may_download(name, a_cache_of_its_own):
    a_directory(a_cache_of_its_own / "models--org--other" / "snapshots" / "ccc", "config.json")
    with pytest.raises(ConfigurationError, match="set NIGHTSHIFT_MODEL_DOWNLOADS=true"):
        find(name)


def test_a_model_is_called_as_its_path_was_written_and_a_link_gives_it_a_name(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "minilm").symlink_to(tmp_path / "model")

    assert model_id(str(tmp_path / "minilm")) == "minilm"
    assert model_id(f"{tmp_path}/model/") == "model"
    assert model_id(f"{tmp_path}/minilm/../model") == "model"
    assert model_id("org/name") == "org/name"


@pytest.mark.parametrize("lazy_count", [0, 1, 2])
def test_two_models_may_not_have_one_name_and_both_paths_are_told(tmp_path: Path, lazy_count: int) -> None:
    """Whether they are loaded at start or when asked for."""
    paths = [str(tmp_path / "a" / "model"), str(tmp_path / "b" / "model")]
    pinned, lazy = paths[: 2 - lazy_count], paths[2 - lazy_count :]

    with pytest.raises(ConfigurationError, match="'model'") as raised:
        check_distinct(pinned, lazy)

    assert all(path in str(raised.value) for path in paths)
    check_distinct([paths[0], str(tmp_path / "b" / "other"), "org/model"])


def test_a_model_is_loaded_at_start_or_when_asked_for_and_not_both() -> None:
    check_distinct(["org/a"], ["org/b"])
    with pytest.raises(ConfigurationError, match="org/a is named both in NIGHTSHIFT_MODELS "):
        check_distinct(["org/a"], ["org/b", "org/a"])
    with pytest.raises(ConfigurationError, match="would both be called 'org/a'"):
        check_distinct(["org/a@v1"], ["org/a@v2"])


def an_adapter(path: Path) -> Path:
    directory = a_directory(path, "adapter_config.json", "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    return directory


def test_an_adapter_is_served_under_the_name_that_it_is_given(tmp_path, monkeypatch):
    an_adapter(tmp_path / "adapters" / "v3")
    monkeypatch.chdir(tmp_path)
    checkpoint = find("sum=models/tiny-llama+adapters/v3")
    assert (checkpoint.id, checkpoint.is_hub_id) == ("sum", False)
    assert checkpoint.reference == f"sum=models/tiny-llama+{tmp_path}/adapters/v3"
    assert model_id(checkpoint.reference) == "sum"


def test_models_and_adapters_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_directory(tmp_path / "a=b+c", *FILES)
    models, adapters = split_adapters(["org/chat@main", "a=b+c", "sum=org/chat@main+/srv/sum", "/srv/a=b+c"])
    assert models == ("org/chat@main", "a=b+c", "/srv/a=b+c")
    assert adapters == (Adapter("sum", "org/chat@main", "/srv/sum"),)


def test_what_an_adapter_lacks_is_named(tmp_path):
    a_directory(tmp_path / "v3", "adapter_config.json", "adapter_model.bin")
    with pytest.raises(ConfigurationError, match=r"adapter sum: .*v3 has no adapter_model\.safetensors"):
        find(f"sum=org/chat+{tmp_path / 'v3'}")


def test_adapters_are_named_beside_their_base_and_are_lora(tmp_path):
    path = an_adapter(tmp_path / "v3")
    named = f"sum=org/chat+{path}"
    check_references(["org/chat", named], ["org/lazy"])
    for references, lazy in (([named], []), (["org/a", named], ["org/chat"]), (["org/chat"], [named])):
        with pytest.raises(ConfigurationError, match="not among the models that are loaded at start"):
            check_references(references, lazy)
    for text, says in (
        ('{"peft_type": "LORA", "use_dora": true}', "it is of the kind DORA; only plain LORA is served"),
        ('{"peft_type": "IA3"}', "it is of the kind IA3"),
        ("[]", "adapter_config.json cannot be read"),
        ("{", "adapter_config.json cannot be read"),
    ):
        (path / "adapter_config.json").write_text(text)
        with pytest.raises(ConfigurationError, match=says):
            check_references(["org/chat", named])


def test_an_adapter_cannot_have_the_name_of_a_model(tmp_path):
    with pytest.raises(ConfigurationError, match="would both be called 'chat'"):
        check_distinct(["/models/chat", f"chat=chat+{tmp_path}"])
