"""Ranks read their parts of a checkpoint, and refuse what they would read wrongly or cannot share."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nightshift_engine import EngineConfig
from nightshift_engine.checkpoint import stored_tensors
from nightshift_engine.errors import InvalidConfig, ModelLoadFailed
from nightshift_engine.execution.parallel.group import Group
from nightshift_engine.execution.parallel.sharded import run_of
from nightshift_engine.loading.ranks.checks import settle
from nightshift_engine.loading.ranks.reading import load_rows
from nightshift_engine.seq2seq.model import seq2seq_config
from tests.unit.engine.loading.test_model_families import CASES as FAMILIES
from tests.unit.engine.tiny.decoders import VOCAB_SIZE, engine_config, save_model
from tests.unit.engine.tiny.ranks import CPU, loaded_on_two_ranks


def group_of(rank: int, size: int = 2) -> Group:
    """A rank that reads, and so needs none of the others."""
    return Group(rank, size, CPU, backend=None)


class CountedReads:
    """Numbers read of each tensor of a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers: Counter[str] = Counter()
        monkeypatch.setattr(stored_tensors, "safe_open", self._open)

    def _open(self, path: Path, **options: Any) -> Any:
        counted, file = self, safe_open(path, **options)

        class Slice:
            def __init__(self, name: str) -> None:
                self._name, self._slice = name, file.get_slice(name)

            def get_shape(self) -> list[int]:
                return cast(list[int], self._slice.get_shape())

            def __getitem__(self, rows: slice) -> torch.Tensor:
                return counted.count(self._name, self._slice[rows])

        class File:
            def __enter__(self) -> "File":
                file.__enter__()
                return self

            def __exit__(self, *error: object) -> None:
                file.__exit__(*error)

            def get_slice(self, name: str) -> Slice:
                return Slice(name)

            def get_tensor(self, name: str) -> torch.Tensor:
                return counted.count(name, file.get_tensor(name))

        return File()

    def count(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.numbers[name] += tensor.numel()
        return tensor


def test_a_rank_reads_its_half_of_every_matrix_but_the_embedding(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = load_file(llama / "model.safetensors")
    read = []
    for rank in (0, 1):
        counted = CountedReads(monkeypatch)
        load_rows(group_of(rank), engine_config(llama), llama)
        read.append(counted.numbers)

    for name, tensor in stored.items():
        is_whole = tensor.dim() == 1 or name == "model.embed_tokens.weight"
        assert [numbers[name] for numbers in read] == [tensor.numel() // (1 if is_whole else 2)] * 2, name


@pytest.mark.parametrize("rows", [8, 7, 5, 1])
def test_runs_of_rows_cover_a_weight_once(rows: int) -> None:
    runs = [run_of(rows, rank, 4) for rank in range(4)]

    assert [row for run in runs for row in range(*run)] == list(range(rows))


def test_a_rank_beyond_the_last_row_reads_none(tmp_path: Path) -> None:
    checkpoint = save_model(tmp_path, hidden_size=4, head_dim=8)  # as many rows has what attention ends with

    assert load_rows(group_of(2, 3), engine_config(checkpoint), checkpoint).info["missing_keys"] == set()


def test_tied_weights_that_are_stored_twice_must_be_the_same(tmp_path: Path) -> None:
    checkpoint = save_model(tmp_path, tie_word_embeddings=True)
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    twice = tensors["model.embed_tokens.weight"].clone()
    save_file({**tensors, "lm_head.weight": twice}, path, metadata={"format": "pt"})
    assert load_rows(group_of(1), engine_config(checkpoint), checkpoint).info["unexpected_keys"] == set()

    twice[VOCAB_SIZE - 1, 0] += 1
    save_file({**tensors, "lm_head.weight": twice}, path, metadata={"format": "pt"})
    with pytest.raises(
        ModelLoadFailed, match=r"lm_head\.weight and model\.embed_tokens\.weight are tied and"
    ):
        load_rows(group_of(1), engine_config(checkpoint), checkpoint)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_key_value_heads": 1}, "its 1 KV heads cannot be shared by 2 devices"),
        (
            {"hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3},
            "its 3 attention heads cannot",
        ),
        ({"intermediate_size": 49}, "its 49 columns of an MLP cannot"),
        ({"vocab_size": VOCAB_SIZE + 1}, "its 259 tokens in the vocabulary cannot"),
    ],
)
def test_what_cannot_be_shared_alike_is_refused_before_anything_is_started(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    checkpoint = save_model(tmp_path, **settings)

    with pytest.raises(InvalidConfig, match=f"tensor_parallel_size 2 cannot be used with .*: {reason}"):
        settle(engine_config(checkpoint, tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mixtral", "it is a mixture of experts"),
        ("minicpm3", "it keeps latent KV, which all heads share"),
        ("gpt_neox", "its files have embed_out.weight where its modules have lm_head.weight"),
        ("olmo2", "a norm of its attention spans all heads"),
        ("apertus", "its mlp is a module of its own kind"),
        ("nanochat", "its queries or keys are changed between their linear layer and attention"),
    ],
)
def test_models_that_are_not_split_are_refused_by_name(family: str, reason: str, tmp_path: Path) -> None:
    checkpoint = save_model(tmp_path, family, **FAMILIES[family])
    config = engine_config(checkpoint, tensor_parallel_size=2)

    with pytest.raises(InvalidConfig, match=reason), loaded_on_two_ranks(config):
        raise AssertionError("it was loaded")


@pytest.mark.parametrize("field", [{"deterministic": True}, {"weight_dtype": "int8"}])
def test_settings_that_exclude_several_devices_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidConfig, match="tensor_parallel_size must be 1 to be deterministic, or with rounded weights"
    ):
        EngineConfig("model", tensor_parallel_size=2, **field)


def test_an_encoder_decoder_has_one_device() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size must be 1 for encoder-decoders, got 2"):
        seq2seq_config(EngineConfig("model", tensor_parallel_size=2))


def test_all_ranks_compute_in_the_dtype_that_rank_0_settled(llama: Path) -> None:
    config, device = settle(engine_config(llama, tensor_parallel_size=2))

    assert (config.dtype, device) == ("float32", CPU)
