"""`nightshift models`: adapters that `up` and `worker` serve from their next start on."""

from pathlib import Path

import pytest

from nightshift.cli.models import with_added


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "finetuned"
    folder.mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / file).write_text('{"peft_type": "LORA"}')
    return folder


def add(nightshift, adapter, data_dir, name="sum", base="org/chat@main"):
    return nightshift(
        "models", "add-adapter", name, str(adapter), "--base", base, "--data-dir", str(data_dir)
    )


def test_an_adapter_that_was_added_is_served_beside_its_base_and_only_there(nightshift, adapter, tmp_path):
    ended = add(nightshift, adapter, tmp_path / "data")

    says, advises = ended.err.splitlines()
    assert (ended.code, says) == (0, "sum will be served where org/chat is, from the next start on")
    assert "NIGHTSHIFT_MODELS names no org/chat: name it there, or start with --model org/chat" in advises
    assert with_added(["org/chat"], tmp_path / "data") == ("org/chat", f"sum=org/chat+{adapter}")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("data", "data/adapters")] == [0o700, 0o600]
    assert with_added(["other"], tmp_path / "data") == ("other",)
    named = ("org/chat", "sum=org/chat+/elsewhere")
    assert with_added(named, tmp_path / "data") == named


def test_the_same_name_again_replaces_it_and_it_can_be_removed(nightshift, adapter, tmp_path):
    data_dir = tmp_path / "data"
    add(nightshift, adapter, data_dir)
    add(nightshift, adapter, data_dir, base="other")
    assert with_added(["other", "org/chat"], data_dir)[2:] == (f"sum=other+{adapter}",)
    listed = nightshift("models", "list-adapters", "--data-dir", str(data_dir), "--json")
    assert listed.json == [{"id": "sum", "parent": "other", "path": str(adapter)}]

    ended = nightshift("models", "remove-adapter", "sum", "--data-dir", str(data_dir))
    assert ended.code == 0
    assert with_added(["other"], data_dir) == ("other",)
    again = nightshift("models", "remove-adapter", "sum", "--data-dir", str(data_dir))
    assert again.code == 1
    assert "there is no adapter 'sum'" in again.err


def test_what_is_no_adapter_is_refused(nightshift, adapter, tmp_path):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    ended = add(nightshift, adapter, tmp_path / "data")
    assert ended.code == 1
    assert "has no adapter_model.safetensors" in ended.err
    (adapter / "adapter_model.bin").rename(adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "use_dora": true}')
    assert "it is of the kind DORA; only plain LORA is served" in add(nightshift, adapter, tmp_path).err
    ended = add(nightshift, adapter, tmp_path / "data", name="a name")
    assert "'a name' cannot be a name" in ended.err
