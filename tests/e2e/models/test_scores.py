"""A classifier and a reranker in a real service: online, in a batch file, and as rows into Parquet."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift_engine.encoders import PairText
from tests.e2e.service import Service, answers_of, parquet_rows, run
from tests.unit.engine.tiny.classifiers import reference_logits
from tests.unit.engine.tiny.encoders import WORDS
from tests.unit.engine.tiny.rerankers import reference_probabilities

TOLERANCE = 2e-5
QUERY = "w40 w41 w5"
TEXTS = [" ".join(WORDS[start : start + length]) for start, length in ((0, 1), (7, 5), (3, 40), (20, 12))]


@pytest.fixture(scope="module")
def probabilities(folder: Path) -> list[list[float]]:
    """Probabilities of ham and spam, by transformers alone."""
    logits = reference_logits(folder / "spam", [PairText(text) for text in TEXTS])
    powers = 2.718281828459045**logits
    return [[float(value) for value in row] for row in powers / powers.sum(axis=1, keepdims=True)]


@pytest.fixture(scope="module")
def relevances(folder: Path) -> list[float]:
    logits = reference_logits(folder / "reranker", [PairText(QUERY, text) for text in TEXTS])[:, 0]
    return [float(1 / (1 + 2.718281828459045**-logit)) for logit in logits]


@pytest.fixture(scope="module")
def probabilities_of_yes(folder: Path) -> list[float]:
    return reference_probabilities(folder / "generative", [PairText(QUERY, text) for text in TEXTS])


def test_texts_are_classified_and_ranked_online(
    service: Service, probabilities: list[list[float]], relevances: list[float]
) -> None:
    with service.http() as http:
        classified = http.post("/classifications", json={"model": "spam", "input": TEXTS}).json()
        body = {"model": "reranker", "query": QUERY, "documents": TEXTS, "return_documents": True}
        ranked = http.post("/rerank", json=body).json()
        pairs = {"model": "reranker", "text_1": QUERY, "text_2": TEXTS}
        scored = http.post("/score", json=pairs).json()

    for one, wanted in zip(classified["data"], probabilities, strict=True):
        assert [score["score"] for score in one["scores"]] == pytest.approx(wanted, abs=TOLERANCE)
        assert one["label"] == ("ham", "spam")[wanted[1] > wanted[0]]
    assert [pair["score"] for pair in scored["data"]] == pytest.approx(relevances, abs=TOLERANCE)
    best = sorted(range(len(TEXTS)), key=lambda index: -relevances[index])
    assert [result["document"]["text"] for result in ranked["results"]] == [TEXTS[index] for index in best]


def test_a_batch_file_asks_for_rankings(service: Service, relevances: list[float]) -> None:
    """Goal: the lines of a batch are the same for these routes as for OpenAI's."""
    body = {"model": "reranker", "query": QUERY, "documents": TEXTS}
    # The first asks for none, which is an error of its line.
    done = answers_of(service, "/v1/rerank", {f"r{n}": body | {"top_n": n} for n in range(3)})

    assert done.keys() == {"r1", "r2"}, service.logs()
    best = sorted(range(len(TEXTS)), key=lambda index: -relevances[index])
    assert [result["index"] for result in done["r2"]["results"]] == best[:2]
    score = done["r2"]["results"][0]["relevance_score"]
    assert score == pytest.approx(relevances[best[0]], abs=TOLERANCE)


def test_a_generative_reranker_ranks_online_and_in_a_batch_file(
    service: Service, folder: Path, probabilities_of_yes: list[float]
) -> None:
    body = {"model": "generative", "query": QUERY, "documents": TEXTS}
    instruction = "find what is no word"
    instructed = [PairText(QUERY, text, instruction=instruction) for text in TEXTS]
    pairs = {"model": "generative", "text_1": QUERY, "text_2": TEXTS, "instruction": instruction}
    with service.http() as http:
        ranked = http.post("/rerank", json=body).json()["results"]
    scored = answers_of(service, "/v1/score", {"a": pairs})["a"]["data"]

    by_index = {result["index"]: result["relevance_score"] for result in ranked}
    assert [by_index[index] for index in range(len(TEXTS))] == pytest.approx(
        probabilities_of_yes, abs=TOLERANCE
    )
    wanted = reference_probabilities(folder / "generative", instructed)
    assert [pair["score"] for pair in scored] == pytest.approx(wanted, abs=TOLERANCE)


def test_rows_become_labels_and_scores_in_parquet(
    service: Service,
    folder: Path,
    probabilities: list[list[float]],
    relevances: list[float],
) -> None:
    table = pa.table({"text": [*TEXTS, ""], "query": [QUERY] * (len(TEXTS) + 1)})
    pq.write_table(table, folder / "scored.parquet")

    def rows(endpoint: str, model: str) -> list[dict[str, object]]:
        how = ("--endpoint", endpoint, "--model", model, "--input-column", "text", "--format", "parquet")
        ended = run(service, folder, "scored.parquet", "--output", f"of/{model}", *how)
        assert "4 rows succeeded, 1 failed" in ended.stdout, ended.stdout + ended.stderr
        return sorted(parquet_rows(folder / "of" / model), key=lambda row: str(row["custom_id"]))

    *classified, failed = rows("classifications", "spam")
    for row, wanted in zip(classified, probabilities, strict=True):
        assert row["label"] == ("ham", "spam")[wanted[1] > wanted[0]]
        assert row["score"] == pytest.approx(max(wanted), abs=TOLERANCE)
        assert (row["labels"], row["scores"]) == ('["ham","spam"]', pytest.approx(wanted, abs=TOLERANCE))
    assert (failed["outcome"], failed["label"], failed["scores"]) == ("errored", None, None)
    assert "not empty" in str(failed["error_message"])

    scored = [row["score"] for row in rows("score", "reranker")]
    assert scored == [*(pytest.approx(score, abs=TOLERANCE) for score in relevances), None]
