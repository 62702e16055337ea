"""Which vectors may be cut, to which sizes, and what a cut vector is."""

import json
from pathlib import Path

import numpy as np
import pytest

from nightshift_engine.encoders.matryoshka import Matryoshka, cut
from nightshift_engine.errors import InvalidConfig

CARD = "---\nlanguage: en\ntags:\n- sentence-transformers\n- loss:{}\n---\n\n# A model\n"


def checkpoint(directory: Path, card: str | None = None, **config: object) -> Path:
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    if card is not None:
        (directory / "README.md").write_text(card)
    return directory


@pytest.mark.parametrize(
    ("card", "config", "expected"),
    [
        (None, {}, Matryoshka()),
        (None, {"is_matryoshka": True}, Matryoshka(True)),
        (None, {"is_matryoshka": "yes"}, Matryoshka()),
        (None, {"matryoshka_dimensions": [256, 128]}, Matryoshka(True, (256, 128))),
        (None, {"matryoshka_dimensions": ["256", True, -1]}, Matryoshka()),
        (CARD.format("MatryoshkaLoss"), {}, Matryoshka(True)),
        (CARD.format("Matryoshka2dLoss"), {}, Matryoshka(True)),
        (CARD.format("MultipleNegativesRankingLoss"), {}, Matryoshka()),
        ("# How it was trained\n\n- loss:MatryoshkaLoss\n", {}, Matryoshka()),
        ("---\ntags: []\n---\n- loss:MatryoshkaLoss\n", {}, Matryoshka()),
    ],
)
def test_a_checkpoint_says_so_in_its_configuration_or_its_cards_tags(tmp_path, card, config, expected):
    assert Matryoshka.read(checkpoint(tmp_path, card, **config)) == expected


@pytest.mark.parametrize(
    ("matryoshka", "size", "reason"),
    [
        (Matryoshka(), 384, None),
        (Matryoshka(), 128, "must be 384, got 128: nothing says"),
        (Matryoshka(), 385, "must be 1 to 384, got 385"),
        (Matryoshka(True), 1, None),
        (Matryoshka(True), 0, "must be 1 to 384, got 0"),
        (Matryoshka(True), 385, "must be 1 to 384, got 385"),
        (Matryoshka(True, (256, 128)), 128, None),
        (Matryoshka(True, (256, 128)), 384, None),
        (Matryoshka(True, (256, 128)), 100, "must be one of 128, 256, 384, got 100"),
    ],
)
def test_a_size_is_given_or_refused_with_the_reason(matryoshka, size, reason):
    objection = matryoshka.objection(size, 384)

    assert objection is None if reason is None else reason in objection


def test_a_cut_vector_has_unit_length_where_the_whole_has_it():
    whole = np.array([0.6, 0.0, 0.8], dtype=np.float32)

    np.testing.assert_array_equal(cut(whole, 2, is_normalized=True), np.array([1, 0], dtype=np.float32))
    np.testing.assert_array_equal(cut(whole, 2, is_normalized=False), whole[:2])
    np.testing.assert_array_equal(cut(whole[1:], 1, is_normalized=True), np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize("sizes", [(0,), (1,) * 65, (10**7,)])
def test_sizes_that_no_vector_has_are_refused(sizes):
    with pytest.raises(InvalidConfig, match="matryoshka_dimensions must be"):
        Matryoshka(True, sizes)
