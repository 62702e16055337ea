"""Requests for scores, and their answers as bodies and as values."""

from typing import Any

import pytest

from nightshift import endpoints
from nightshift.endpoints.encoders import rerank
from nightshift.endpoints.encoders.rerank import Rerank
from nightshift.endpoints.encoders.scoring import TEXTS_MAX, Scored, ScoringEndpoint, ScoringRequest, packed
from nightshift.endpoints.results import Identity, Origin, Result
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass

IDENTITY = Identity("job_1/0/0", 1_700_000_000)
LABELS = ("ham", "spam", "eggs")


def a_request(route: str, **body: Any) -> ScoringRequest:
    request = endpoints.get(route).parse({"model": "m", **body})
    assert isinstance(request, ScoringRequest)
    return request


def result(route: str, scores: list[list[float]], **body: Any) -> Result:
    endpoint = endpoints.get(route)
    assert isinstance(endpoint, ScoringEndpoint)
    labels = LABELS[: len(scores[0])]
    return endpoint.result(a_request(route, **body), Scored(IDENTITY, labels, [*map(packed, scores)], 7))


def answer(route: str, scores: list[list[float]], **body: Any) -> JsonObject:
    """The body; made of the values alone where they say it all, which must make the same values again."""
    endpoint = endpoints.get(route)
    scored = result(route, scores, **body)
    made = endpoint.body_of(Origin(IDENTITY, "m", PriorityClass.STANDARD), scored)
    assert endpoint.values(made) == scored.values
    return made


USAGE = {"prompt_tokens": 7, "total_tokens": 7}


def test_a_text_is_classified_with_the_scores_of_all_labels_in_the_models_order():
    body = answer("/v1/classifications", [[0.25, 0.5, 0.125]], input="a")

    scores = [
        {"label": label, "score": score} for label, score in zip(LABELS, (0.25, 0.5, 0.125), strict=True)
    ]
    assert body == {
        "object": "list",
        "model": "m",
        "data": [{"index": 0, "label": "spam", "scores": scores}],
        "usage": USAGE,
    }
    [best] = answer("/v1/classifications", [[0.25, 0.5, 0.375]], input="a", top_k=2)["data"]
    assert best["scores"] == [{"label": "spam", "score": 0.5}, {"label": "eggs", "score": 0.375}]
    assert best["label"] == "spam"


def test_several_texts_are_classified_by_their_index():
    body = answer("/v1/classifications", [[0.75, 0.25], [0.25, 0.75]], input=["a", {"text": "b"}])

    assert [(entry["index"], entry["label"]) for entry in body["data"]] == [(0, "ham"), (1, "spam")]


def test_a_row_with_one_text_has_its_label_and_scores_as_columns():
    values = result("/v1/classifications", [[0.25, 0.75]], input="a").values

    assert values == {
        "label": "spam",
        "score": packed([0.75]),
        "labels": '["ham","spam"]',
        "scores": packed([0.25, 0.75]),
    }


def test_documents_come_best_first_and_equal_ones_in_their_order():
    documents = ["a", {"text": "b"}, "c", "d"]

    body = answer("/v1/rerank", [[0.25], [0.5], [0.25], [-1.0]], query="q", documents=documents)

    assert body == {
        "id": IDENTITY.id("rerank-"),
        "model": "m",
        "results": [
            {"index": 1, "relevance_score": 0.5},
            {"index": 0, "relevance_score": 0.25},
            {"index": 2, "relevance_score": 0.25},
            {"index": 3, "relevance_score": -1.0},
        ],
        "usage": USAGE,
    }


@pytest.mark.parametrize("top_n", [1, 2, 9])
def test_the_best_documents_may_be_asked_for_with_their_texts(top_n):
    fields = {"query": "q", "documents": ["a", {"text": "b"}], "top_n": top_n, "return_documents": True}

    results = answer("/v1/rerank", [[0.25], [0.5]], **fields)["results"]

    assert [result["document"] for result in results] == [{"text": "b"}, {"text": "a"}][:top_n]


def test_documents_are_read_once_for_an_answer_with_all_of_them(monkeypatch):
    fields = {"query": "q", "documents": ["a"] * TEXTS_MAX, "return_documents": True}
    request = a_request("/v1/rerank", **fields)
    read: list[object] = []
    monkeypatch.setattr(rerank, "checked_text", lambda value, place: read.append(value) or value)
    scored = Scored(IDENTITY, LABELS[:1], [packed([0.5])] * TEXTS_MAX, 7)

    Rerank().result(request, scored)

    assert len(read) == TEXTS_MAX


def test_scores_of_pairs_come_in_their_order():
    assert answer("/v1/score", [[0.5], [0.25]], text_1="q", text_2=["a", "b"]) == {
        "id": IDENTITY.id("score-"),
        "object": "list",
        "created": 1_700_000_000,
        "model": "m",
        "data": [
            {"index": 0, "object": "score", "score": 0.5},
            {"index": 1, "object": "score", "score": 0.25},
        ],
        "usage": USAGE,
    }
    assert result("/v1/score", [[0.5]], text_1="q", text_2="a").values["score"] == packed([0.5])


def test_texts_are_paired_one_with_each_or_each_with_its_own():
    def pairs(**body: Any) -> list[tuple[str, str | None, str]]:
        return [(text.text, text.pair, text.place) for text in a_request("/v1/score", **body).texts]

    assert pairs(text_1="q", text_2="a") == [("q", "a", "text_2")]
    assert pairs(text_1=["q"], text_2=["a", "b"]) == [("q", "a", "text_2[0]"), ("q", "b", "text_2[1]")]
    assert pairs(text_1=["q", "r"], text_2=["a", "b"]) == [("q", "a", "text_2[0]"), ("r", "b", "text_2[1]")]


MANY = ["a"] * 10_000


@pytest.mark.parametrize(
    ("route", "body", "param", "said"),
    [
        ("/v1/classifications", {}, "input", "Missing required parameter"),
        ("/v1/classifications", {"input": ""}, "input", "not empty"),
        ("/v1/classifications", {"input": []}, "input", f"1 to {TEXTS_MAX} entries, got 0"),
        ("/v1/classifications", {"input": MANY}, "input", "got 10000"),
        ("/v1/classifications", {"input": ["a", ""]}, "input", r"input\[1\] must be a text"),
        ("/v1/classifications", {"input": [{"text": "a", "text_pair": ""}]}, "input", r"\[0\]\.text_pair"),
        ("/v1/classifications", {"input": [["a", "b"]]}, "input", r"input\[0\] must be a text"),
        ("/v1/classifications", {"input": "a", "top_k": 0}, "top_k", "greater than or equal to 1"),
        ("/v1/classifications", {"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ("/v1/rerank", {"documents": ["a"]}, "query", "Missing required parameter"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "at least 1 character"),
        ("/v1/rerank", {"query": "q"}, "documents", "Missing required parameter"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents", "got 0"),
        ("/v1/rerank", {"query": "q", "documents": MANY}, "documents", "got 10000"),
        ("/v1/rerank", {"query": "q", "documents": {"text": "a"}}, "documents", "a list of texts"),
        ("/v1/rerank", {"query": "q", "documents": ["a", {}]}, "documents", r"documents\[1\] must be a text"),
        ("/v1/rerank", {"query": "q" * 5000, "documents": ["a"] * 2000}, "documents", "query of 5000 char"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n", "greater than or equal"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "instruction": ""}, "instruction", "at least 1"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "instruction": 3}, "instruction", "a string"),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a"] * 2000, "instruction": "i" * 5000},
            "documents",
            "instruction of 5000 characters",
        ),
        (
            "/v1/score",
            {"text_1": ["q"] * 2000, "text_2": ["a"] * 2000, "instruction": "i" * 5000},
            "text_2",
            "instruction of 5000 characters",
        ),
        ("/v1/score", {"text_1": "a"}, "text_2", "Missing required parameter"),
        ("/v1/score", {"text_1": [], "text_2": "a"}, "text_1", "got 0"),
        ("/v1/score", {"text_1": "a", "text_2": 3}, "text_2", "a text or a list of texts"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_2", "there are 2 and 1"),
        ("/v1/score", {"text_1": "q" * 5000, "text_2": ["a"] * 2000}, "text_2", "text_1 of 5000 characters"),
    ],
)
def test_a_wrong_field_is_named(route, body, param, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        a_request(route, **body)

    assert refused.value.param == param


def test_a_column_of_lists_or_of_single_texts_may_be_reranked():
    template = endpoints.get("/v1/rerank").row_template("m", "{{text}}")

    assert template == {"model": "m", "query": "{{query}}", "documents": "{{text}}"}
    assert len(a_request("/v1/rerank", query="q", documents="a").texts) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "items")],
)
def test_texts_of_a_score_have_the_names_of_other_servers_too(first, second):
    request = a_request("/v1/score", **{first: "a", second: ["b", "c"]})

    assert [(text.text, text.pair) for text in request.texts] == [("a", "b"), ("a", "c")]
    assert [text.place for text in request.texts] == [f"{second}[0]", f"{second}[1]"]
    assert {text.first_place for text in request.texts} == {first}
    endpoints.get("/v1/score").check_line({"model": "m", first: "a", second: ["b", "c"]})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"queries": "a", "text_1": "b", "text_2": "c"}, "queries"),
        ({"queries": "a", "documents": ["b"], "items": ["c"]}, "items"),
        ({"queries": "a"}, "text_2"),
        ({"queries": "a", "documents": [5]}, "documents"),
        ({"queries": ["a", "b", "c"], "documents": ["a", "b"]}, "documents"),
        ({"queries": [], "documents": ["b"]}, "queries"),
    ],
    ids=str,
)
def test_a_text_of_a_score_is_refused_by_the_name_that_it_was_given(body, param):
    with pytest.raises(InvalidRequest) as refused:
        a_request("/v1/score", **body)
    assert refused.value.param == param


def test_a_classification_in_vllms_shape_has_the_probabilities_of_all_labels():
    body = answer("/v1/classify", [[0.25, 0.5, 0.125], [0.5, 0.25, 0.0]], input=["a", "b"])

    assert body["data"] == [
        {"index": 0, "label": "spam", "probs": [0.25, 0.5, 0.125], "num_classes": 3},
        {"index": 1, "label": "ham", "probs": [0.5, 0.25, 0.0], "num_classes": 3},
    ]
    assert (body["object"], body["created"], body["usage"]) == ("list", IDENTITY.created_s, USAGE)
    assert body["id"].startswith("classify-")
    alone = result("/v1/classify", [[0.25, 0.5, 0.125]], input="a")
    made = endpoints.get("/v1/classify").body_of(Origin(IDENTITY, "m", PriorityClass.STANDARD), alone)
    assert made["data"] == body["data"][:1]


def test_a_moderation_says_which_labels_apply():
    body = answer("/v1/moderations", [[0.25, 0.5, 0.125]], input="a")

    [moderated] = body["results"]
    assert moderated["categories"] == {"ham": False, "spam": True, "eggs": False}
    assert moderated["category_scores"] == {"ham": 0.25, "spam": 0.5, "eggs": 0.125}
    assert moderated["flagged"] is True
    assert body["id"].startswith("modr-")
    several = answer("/v1/moderations", [[0.25, 0.25], [0.75, 0.0]], input=["a", "b"])
    assert [entry["flagged"] for entry in several["results"]] == [False, True]


@pytest.mark.parametrize("label", ["safe", "Neutral", "not toxic", "non-hate", "OK"])
def test_a_label_that_says_that_nothing_is_wrong_flags_no_text(label):
    endpoint = endpoints.get("/v1/moderations")
    assert isinstance(endpoint, ScoringEndpoint)
    scored = Scored(IDENTITY, [label, "toxic"], [packed([0.75, 0.25])], 7)
    made = endpoint.result(a_request("/v1/moderations", input="a"), scored)

    [moderated] = endpoint.body_of(Origin(IDENTITY, "m", PriorityClass.STANDARD), made)["results"]
    assert (moderated["flagged"], moderated["categories"][label]) == (False, True)


def test_the_parts_of_a_moderated_text_are_read_together_and_images_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert [text.text for text in a_request("/v1/moderations", input=parts).texts] == ["a\nb"]
    with pytest.raises(InvalidRequest, match=r"input\[1\]\.type is 'image_url'"):
        a_request("/v1/moderations", input=[parts[0], {"type": "image_url"}])
