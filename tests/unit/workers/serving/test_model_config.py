"""Files that configure a model's batching: what they say, and what is wrong with them, by line and field."""

from dataclasses import fields
from pathlib import Path

import pytest

from nightshift.errors import ConfigurationError
from nightshift_engine.encoders import DynamicBatching, EncoderConfig, Matryoshka
from workers.serving.model_config import FILE_BYTES_MAX, ModelConfig, read_model_configs

YAML = """\
# What an operator writes.
models:
  minilm:
    max_batch_size: 64
    max_num_batched_tokens: 2048
    length_buckets: [32, 64, 128, 256]
    dynamic_batching:
      max_queue_delay_microseconds: 5000
      preferred_batch_size: [16, 32, 64]
"""

SAID = EncoderConfig(
    max_batch_size=64,
    max_num_batched_tokens=2048,
    length_buckets=(32, 64, 128, 256),
    dynamic_batching=DynamicBatching(max_queue_delay_microseconds=5_000, preferred_batch_size=(16, 32, 64)),
)


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def problem(directory: Path, name: str, text: str) -> str:
    """The problem with a file, after its path."""
    path = write(directory, name, text)
    with pytest.raises(ConfigurationError) as error:
        read_model_configs([path], ["minilm"])
    assert error.value.message.startswith(f"{path}, line ")
    return error.value.message.removeprefix(f"{path}, ")


def wrong_yaml(directory: Path, fields: str) -> str:
    """The problem with a model's field that begins in line 3."""
    indented = "".join(f"    {line}\n" for line in fields.splitlines())
    return problem(directory, "models.yaml", f"models:\n  minilm:\n{indented}").replace("models.minilm.", "")


# --- what is read ---


def said_of(directory: Path, text: str) -> ModelConfig:
    return read_model_configs([write(directory, "models.yaml", text)], ["minilm"])["minilm"]


@pytest.mark.parametrize(
    ("text", "batching"),
    [
        (YAML, SAID),
        ("models:\n  minilm: {}\n", EncoderConfig()),
        ("models:\n  minilm:\n    max_batch_size: 010\n", EncoderConfig(max_batch_size=10)),
        ("models:\n  minilm:\n    length_buckets: []\n", EncoderConfig(length_buckets=())),
    ],
    ids=["everything", "nothing is the default", "decimal as it is written", "no buckets"],
)
def test_a_file_says_how_a_model_is_batched(tmp_path, text, batching):
    config = said_of(tmp_path, text).batching

    said = {field.name: getattr(config, field.name) for field in fields(EncoderConfig)}
    assert EncoderConfig(**said) == batching


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("is_matryoshka: true", Matryoshka(True)),
        ("is_matryoshka: false", Matryoshka()),
        ("matryoshka_dimensions: [64, 128]", Matryoshka(True, (64, 128))),
        ("max_batch_size: 1", None),
    ],
)
def test_a_file_may_say_to_which_sizes_vectors_can_be_cut(tmp_path, said, expected):
    assert said_of(tmp_path, f"models:\n  minilm:\n    {said}\n").matryoshka == expected


def test_a_file_beside_the_checkpoint_configures_it_unless_the_setting_does(tmp_path):
    checkpoint = tmp_path / "minilm"
    checkpoint.mkdir()
    write(checkpoint, "nightshift.yaml", "max_batch_size: 8\n")
    other = write(tmp_path, "models.yaml", "models:\n  minilm:\n    max_batch_size: 9\n")

    beside = read_model_configs([], [str(checkpoint)])
    by_setting = read_model_configs([other], [str(checkpoint)])

    assert beside["minilm"].batching.max_batch_size == 8
    assert by_setting["minilm"].batching.max_batch_size == 9


def test_models_of_other_workers_may_be_in_the_same_file(tmp_path, caplog):
    path = write(tmp_path, "models.yaml", "models:\n  minilm: {}\n  bge: {}\n")

    assert read_model_configs([path], ["minilm", "other"]).keys() == {"minilm"}
    assert caplog.records[0].models == ["bge"]


# --- what is wrong ---


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("max_batchsize: 64", "line 3: max_batchsize: there is no such field; there are max_batch_size, ma"),
        ("max_batch_size: many", "line 3: max_batch_size: it should be a valid integer, unable to parse s"),
        ("max_batch_size: [64]", "line 3: max_batch_size: it should be a valid integer, got"),
        ("max_batch_size: -1", "line 3: max_batch_size: must be 0 to 65536, got -1"),
        ("max_batch_size: 99999999999999999999", "line 3: max_batch_size: must be 0 to 65536, got 99"),
        ("dynamic_batching: 5", "line 3: dynamic_batching: it should hold fields"),
        ("length_buckets: 5", "line 3: length_buckets: it should be a valid list, got '5'"),
        ("max_batch_size: 8\nlength_buckets: [64, 32]", "line 4: length_buckets: must ascend, got [64, 32]"),
        ("max_batch_size: 8\nmax_batch_size: 9", "line 4: this is no YAML: max_batch_size is there twice"),
        ("matryoshka_dimensions: [0]", "line 3: matryoshka_dimensions: must be up to 64 sizes of at least 1"),
        (
            "is_matryoshka: false\nmatryoshka_dimensions: [8]",
            "line 4: matryoshka_dimensions: is_matryoshka says that there are none",
        ),
        (
            "max_batch_size: 8\ndynamic_batching:\n  preferred_batch_size: [8, 16]",
            "line 5: dynamic_batching.preferred_batch_size: must not exceed max_batch_size, 8, got 16",
        ),
        (
            "dynamic_batching:\n  max_queue_delay_microseconds: 10000001",
            "line 4: dynamic_batching.max_queue_delay_microseconds: must be 0",
        ),
        (
            "dynamic_batching:\n  max_queue_delay_us: 5",
            "line 4: dynamic_batching.max_queue_delay_us: there is no such field; there are max_queue_",
        ),
        (
            "dynamic_batching:\n  preferred_batch_size: [0]",
            "line 4: dynamic_batching.preferred_batch_size: must be 1 to 65536, got 0",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path, fields, said):
    assert wrong_yaml(tmp_path, fields).startswith(said)


@pytest.mark.parametrize(
    ("field", "to_do"),
    [
        ("priority_levels: 3", "requests wait by their class: interactive, standard or background"),
        ("default_priority_level: 2", "requests wait by their class: interactive, standard or background"),
        ("default_queue_policy: { max_queue_size: 5 }", "no request is rejected or delayed"),
        ("priority_queue_policy: { 1: {} }", "no request is rejected or delayed"),
        ("preserve_ordering: true", "answers leave when they are ready"),
    ],
)
def test_a_field_that_is_no_longer_read_says_so_and_what_to_do(tmp_path, field, to_do):
    name = field.partition(":")[0]

    said = wrong_yaml(tmp_path, f"dynamic_batching:\n  max_queue_delay_microseconds: 5\n  {field}")

    assert said.startswith(f"line 5: dynamic_batching.{name}: it is no longer read: {to_do}")
    assert "Delete the field" in said


def test_protobuf_text_is_refused_with_what_to_write_instead_and_left_alone_beside_yaml(tmp_path):
    checkpoint = tmp_path / "minilm"
    checkpoint.mkdir()
    beside = write(checkpoint, "config.pbtxt", "max_batch_size: 8")

    for paths, models in (([beside], []), ([], [str(checkpoint)])):
        with pytest.raises(ConfigurationError) as error:
            read_model_configs(paths, models)
        assert error.value.message.startswith(f"{beside}: protobuf text is not read. Write the model's max_")
        assert "nightshift.yaml" in error.value.message

    write(checkpoint, "nightshift.yaml", "max_batch_size: 9")

    assert read_model_configs([], [str(checkpoint)])["minilm"].batching.max_batch_size == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models:\n  minilm: {}\n  minilm: {}\n", "line 3: this is no YAML: minilm is there twice"),
        ("models: [minilm]\n", "line 1: models: it should hold models by name"),
        ("models:\n  minilm: 5\n", "line 2: models.minilm: it should hold fields"),
        ("model:\n  minilm: {}\n", "line 1: model: there is no such field; there is models"),
        ("", "line 1: models: it should hold models by name"),
        ("models:\n  a: {\n", "line 3: this is no YAML: "),
        ("models:\n  a: &x {}\n  b: *x\n", "line 3: this is no YAML: aliases are not read"),
        ("models: {}\n---\nmodels: {}\n", "line 2: this is no YAML: but found another document"),
        ("models:\n  ? [a]\n  : {}\n", "line 2: this is no YAML: found unhashable key"),
        ("a\n", "line 1: there should be fields"),
        ("models:\n  a: \x07\n", "line 1: this is no YAML: "),
        ('models:\n  a: "\\UFFFFFFFF"\n', "line 1: this is no YAML: a number in an escape"),
        (f"%YAML {'1' * 5000}.1\n---\nmodels: {{}}\n", "line 1: this is no YAML: a number in an escape"),
    ],
)
def test_what_is_no_configuration_in_yaml_is_said_with_its_line(tmp_path, text, said):
    assert problem(tmp_path, "models.yaml", text).startswith(said)


def test_a_model_in_two_files_is_refused_with_both_places(tmp_path):
    first = write(tmp_path, "a.yaml", "models:\n  minilm: {}\n")
    second = write(tmp_path, "b.yaml", "models:\n\n  minilm: {}\n")

    with pytest.raises(
        ConfigurationError, match=r"b\.yaml, line 3: models\.minilm: it is configured twice, al"
    ):
        read_model_configs([first, second], ["minilm"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" * 10_000_000, f"line 1: the file goes on beyond {FILE_BYTES_MAX} bytes"),
        ("a: {" * 2_000, "line 1: its fields and lists are nested too deeply"),
        ("a: [" + "[" * 2_000, "line 1: its fields and lists are nested too deeply"),
    ],
    ids=["10 MB", "braces", "brackets"],
)
def test_what_would_cost_too_much_is_refused(tmp_path, text, said):
    assert problem(tmp_path, "models.yaml", text) == said


def test_text_that_is_no_utf_8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_bytes(b"models:\n  \xff: {}\n")

    with pytest.raises(ConfigurationError, match=r"models\.yaml, line 2: this is no UTF-8"):
        read_model_configs([str(path)], [])


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml is no file"):
        read_model_configs(["nowhere.yaml"], [])
