"""What is measured of classifiers and rerankers: queries of all documents, ratios, and that scores agree."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import classification
from benchmarks.classification import DifferentScoresError, best, compared, table
from benchmarks.classifiers import make_queries
from benchmarks.rerank import largest_difference
from benchmarks.runners.rerank import RerankRun


def test_queries_have_so_many_documents_each_and_none_has_two_queries() -> None:
    texts = [f"text {number}" for number in range(10)]

    queries = make_queries(texts, num_documents=4, seed=1, query_words=3)

    assert [query.documents for query in queries] == [texts[:4], texts[4:8]]
    assert [len(query.query.split()) for query in queries] == [3, 3]
    assert queries == make_queries(texts, num_documents=4, seed=1, query_words=3)


def test_a_ratio_is_to_the_runs_of_ours_around_the_peers() -> None:
    row = compared(8, before_s=1.0, theirs_s=4.0, after_s=3.0, difference=1e-7, num_rows=100)

    assert (row["rows/s"], row["ours, rows/s"], row["ours / it"]) == (25.0, 50.0, 2.0)


def test_the_ratio_that_counts_is_to_the_peer_at_its_best() -> None:
    rows = [compared(size, 1.0, seconds, 1.0, 0.0, 1) for size, seconds in ((1, 3.0), (4, 2.0), (8, 2.5))]

    assert best(rows)["peer"] == "pipeline, batches of 4"


def test_an_engine_that_computes_something_else_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "ours", lambda *_: lambda texts: np.zeros((len(texts), 2)))
    monkeypatch.setattr(classification, "pipeline", lambda *_: lambda texts: np.full((len(texts), 2), 0.01))

    with pytest.raises(DifferentScoresError, match=r"differ from ours by 0\.01"):
        table(classification.Path("anywhere"), "float32", ["a", "b"])


def test_the_difference_is_the_largest_of_any_document() -> None:
    one, other = RerankRun(1.0, 0.0, [[0.5, 0.25], [0.75]]), RerankRun(1.0, 0.0, [[0.5, 0.5], [0.75]])

    assert largest_difference(one, other) == 0.25
