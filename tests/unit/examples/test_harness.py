"""The measures by which the examples judge themselves can tell right from wrong."""

import json
from pathlib import Path

import pytest

from examples.harness.measures import auc, ndcg
from examples.harness.outputs import WrongOutput, rows_of
from examples.translation import german_parts, in_german


def test_the_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    assert auc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    assert auc([1.0, 2.0], [True, False]) == 0.0


def test_a_tie_counts_half_in_the_auc() -> None:
    assert auc([0.5, 0.5, 0.5], [True, False, False]) == 0.5


def test_without_one_of_each_class_there_is_no_auc() -> None:
    with pytest.raises(ValueError, match="both classes"):
        auc([0.1, 0.2], [True, True])


def test_the_ndcg_of_the_best_order_is_one_and_of_a_worse_one_less() -> None:
    assert ndcg([3.0, 2.0, 0.0], first=2) == 1.0
    assert ndcg([0.0, 0.0, 3.0], first=2) == 0.0
    assert ndcg([0.0, 1.0], first=2) == pytest.approx(0.6309, abs=1e-4)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "null"),
        (1, "eins"),
        (21, "einundzwanzig"),
        (100, "einhundert"),
        (101, "einhunderteins"),
        (1016, "eintausendsechzehn"),
        (7342, "siebentausenddreihundertzweiundvierzig"),
    ],
)
def test_german_number_words(number: int, words: str) -> None:
    assert in_german(number) == words == "".join(german_parts(number))


def an_output(folder: Path, ids: list[str], counted: int) -> Path:
    lines = [{"custom_id": id, "outcome": "succeeded"} for id in ids]
    (folder / "part-00000-a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = {"complete": True, "counts": {"succeeded": counted, "failed": 0}}
    (folder / "_manifest.json").write_text(json.dumps(manifest))
    (folder / "_SUCCESS").touch()
    return folder


def test_rows_of_an_output_are_found_by_their_id(tmp_path: Path) -> None:
    assert set(rows_of(an_output(tmp_path, ["a", "b"], counted=2), rows=2)) == {"a", "b"}


@pytest.mark.parametrize(("ids", "counted"), [(["a"], 1), (["a"], 2), (["a", "a"], 2)])
def test_an_output_with_a_row_missing_or_there_twice_is_refused(
    tmp_path: Path, ids: list[str], counted: int
) -> None:
    with pytest.raises(WrongOutput):
        rows_of(an_output(tmp_path, ids, counted), rows=2)


def test_an_output_without_its_success_marker_is_refused(tmp_path: Path) -> None:
    folder = an_output(tmp_path, ["a"], counted=1)
    (folder / "_SUCCESS").unlink()
    with pytest.raises(WrongOutput, match="_SUCCESS"):
        rows_of(folder, rows=1)
