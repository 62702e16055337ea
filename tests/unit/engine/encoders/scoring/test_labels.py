"""Names and activations of a classifier's outputs are those of transformers and CrossEncoder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nightshift_engine.encoders.scoring.labels import Activation, Labels, activated, read_config
from nightshift_engine.errors import UnsupportedModel

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("config", "num_outputs", "classified", "ranked"),
    [
        ({}, 2, "softmax", "identity"),
        ({}, 1, "sigmoid", "sigmoid"),
        ({"problem_type": "single_label_classification"}, 3, "softmax", "identity"),
        ({"problem_type": "single_label_classification"}, 1, "sigmoid", "sigmoid"),
        ({"problem_type": "multi_label_classification"}, 3, "sigmoid", "identity"),
        ({"problem_type": "regression"}, 1, "identity", "sigmoid"),
        ({"problem_type": "regression"}, 2, "identity", "identity"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, 1, "sigmoid", "identity"),
        ({"sbert_ce_default_activation_function": SIGMOID}, 1, "sigmoid", "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.Identity"}, 1, "sigmoid", "identity"),
    ],
)
def test_the_activation_is_the_pipelines_for_labels_and_the_cross_encoders_for_a_ranking(
    config: dict[str, Any], num_outputs: int, classified: str, ranked: str
) -> None:
    labels = Labels.read(config, num_outputs, "m")

    assert (labels.activation, labels.ranking_activation) == (classified, ranked)


@pytest.mark.parametrize("own", [{}, {"activation_fn": IDENTITY}, {"activation_fn": None}])
def test_newer_sentence_transformers_declares_the_activation_in_its_own_file_which_comes_first(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    config = {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1.0"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(own))

    labels = Labels.read(read_config(tmp_path), 1, "m")

    assert labels.ranking_activation == ("identity" if own.get("activation_fn") else "sigmoid")


def test_labels_have_the_names_of_the_map_in_the_order_of_its_numbers() -> None:
    assert Labels.read({"id2label": {"1": "spam", "0": "ham"}}, 2, "m").names == ("ham", "spam")
    assert Labels.read({}, 2, "m").names == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "missing: 1; belonging to none: 2"),
        ({"id2label": {"0": "a"}}, "missing: 1; belonging to none: none"),
        ({"id2label": {"0": "a", "1": "b", "many": "c"}}, "missing: none; belonging to none: many"),
        ({"id2label": {"0": "a", "1" * 5000: "b"}}, "missing: 1; belonging to none: 1111"),
        ({"id2label": {"0": "a", "1": "\ud800"}}, "a label that UTF-8 cannot hold"),
        ({"id2label": ["a", "b"]}, "no map from numbers to texts"),
        ({"id2label": {"0": "a", "1": None}}, "no map from numbers to texts"),
        ({"problem_type": "ranking"}, "its problem_type 'ranking' is not one of regression"),
        ({"sentence_transformers": {"activation_fn": "mine.Tanh"}}, "activation_fn 'mine.Tanh' is not"),
    ],
)
def test_what_is_not_said_rightly_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        Labels.read(config, 2, "m")


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
@pytest.mark.parametrize("logits", [[0.3, -2.0, 1.5], [500.0, -500.0, 0.0], [-1000.0, -1001.0, -1002.0]])
def test_activations_are_torchs_also_for_large_logits(activation: Activation, logits: list[float]) -> None:
    of_torch = {"softmax": lambda x: x.softmax(0), "sigmoid": torch.sigmoid, "identity": lambda x: x}
    expected = of_torch[activation](torch.tensor(logits)).numpy()

    scores = activated(np.array(logits, dtype=np.float32), activation)

    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-7, rtol=1e-6)
