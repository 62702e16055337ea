"""Classifiers and rerankers behind their servers: scores are those of transformers and of CrossEncoder."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TextClassificationPipeline

from nightshift.errors import ConfigurationError, InvalidRequest
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject
from nightshift_engine.encoders import PairText
from tests.unit.engine.tiny.classifiers import (
    change_config,
    reference_logits,
    save_classifier,
    save_tokenizer,
)
from tests.unit.engine.tiny.encoders import WORDS
from tests.unit.engine.tiny.rerankers import (
    TEMPLATE,
    declare_logit_score,
    reference_probabilities,
    save_reranker,
)
from tests.unit.workers.serving.conftest import folders, load, started, submit
from workers.serving.models import Models

TOLERANCE = 2e-5
TEXTS = ["w1", "w7 w8 w9 w10 w2", " ".join(WORDS[:50]), "w3 w3 w3", " ".join(WORDS[20:28])]
QUERY = "w40 w41 w5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifiers")
    labels = {0: "ham", 1: "spam", 2: "eggs"}
    save_classifier(folder / "labels", "distilbert", id2label=labels, label2id=None)
    save_classifier(folder / "topics", "roberta", num_labels=3, problem_type="multi_label_classification")
    save_classifier(folder / "price", "electra", num_labels=1, problem_type="regression")
    save_classifier(folder / "reranker", "bert", num_labels=1)
    save_classifier(folder / "logits", "deberta-v2", num_labels=1)
    change_config(
        folder / "logits", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"}
    )
    save_classifier(folder / "single", "llama", num_labels=2)
    save_tokenizer(folder / "single", has_types=False, has_pairs=False)
    declare_logit_score(save_reranker(folder / "generative", template=TEMPLATE))
    save_classifier(folder / "quality", "llama", num_labels=1)
    save_tokenizer(folder / "quality", has_types=False, has_pairs=False, pad_token=None)
    return folder


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[Models]:
    with started(*folders(folder)) as models:
        assert {server.model.kind for server in models} == {ModelKind.CLASSIFIER}
        yield models


def answered(models: Models, route: str, model: str, **body: Any) -> JsonObject:
    return submit(models, route, {"model": model, **body}).wait().body


@pytest.mark.parametrize("model", ["labels", "topics", "price", "reranker", "single", "quality"])
def test_a_classification_is_that_of_the_pipeline_of_transformers(
    models: Models, folder: Path, model: str
) -> None:
    """Softmax, sigmoid or none of them, as the checkpoint says."""
    pipeline = TextClassificationPipeline(
        model=AutoModelForSequenceClassification.from_pretrained(folder / model, dtype="float32"),
        tokenizer=AutoTokenizer.from_pretrained(folder / model),
    )
    expected = [{label["label"]: label["score"] for label in pipeline(text, top_k=None)} for text in TEXTS]

    data = answered(models, "/v1/classifications", model, input=TEXTS)["data"]
    alone = [answered(models, "/v1/classifications", model, input=text)["data"][0] for text in TEXTS]

    for answers in (data, alone):
        for one, wanted in zip(answers, expected, strict=True):
            scores = {label["label"]: label["score"] for label in one["scores"]}
            assert scores == pytest.approx(wanted, abs=TOLERANCE)
            assert one["label"] == max(wanted, key=wanted.__getitem__)


def test_a_pair_is_classified_as_one(models: Models, folder: Path) -> None:
    pairs = [{"text": QUERY, "text_pair": text} for text in TEXTS]

    data = answered(models, "/v1/classifications", "topics", input=pairs, use_activation=False)["data"]

    scores = [[label["score"] for label in one["scores"]] for one in data]
    expected = reference_logits(folder / "topics", [PairText(QUERY, text) for text in TEXTS])
    np.testing.assert_allclose(scores, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("model", ["reranker", "logits"])
def test_relevance_is_that_of_a_cross_encoder_online_and_alone(
    models: Models, folder: Path, model: str
) -> None:
    """The sigmoid of the one logit, or the logit where sentence-transformers' configuration says so."""
    logits = reference_logits(folder / model, [PairText(QUERY, text) for text in TEXTS])[:, 0]
    expected = (torch.sigmoid(torch.tensor(logits)).numpy() if model == "reranker" else logits).tolist()

    scored = answered(models, "/v1/score", model, text_1=QUERY, text_2=TEXTS)["data"]
    alone = [answered(models, "/v1/score", model, text_1=QUERY, text_2=text)["data"][0] for text in TEXTS]
    body = answered(models, "/v1/rerank", model, query=QUERY, documents=TEXTS, top_n=3)
    ranked, words = body["results"], sum(len(text.split()) for text in TEXTS)

    assert body["usage"]["prompt_tokens"] == words + len(TEXTS) * (len(QUERY.split()) + 3)
    assert [entry["score"] for entry in scored] == pytest.approx(expected, abs=TOLERANCE)
    assert [entry["score"] for entry in alone] == pytest.approx(expected, abs=TOLERANCE)
    best = sorted(range(len(TEXTS)), key=lambda index: -expected[index])[:3]
    assert [entry["index"] for entry in ranked] == best
    assert [entry["relevance_score"] for entry in ranked] == pytest.approx(
        [expected[index] for index in best], abs=TOLERANCE
    )


@pytest.mark.parametrize("instruction", [None, "find what is no river"])
def test_relevance_may_be_the_probability_of_yes_for_an_instruction(
    models: Models, folder: Path, instruction: str | None
) -> None:
    fields = {} if instruction is None else {"instruction": instruction}
    pairs = [PairText(QUERY, text, instruction=instruction) for text in TEXTS]
    expected = reference_probabilities(folder / "generative", pairs)

    scored = answered(models, "/v1/score", "generative", text_1=QUERY, text_2=TEXTS, **fields)["data"]
    ranked = answered(models, "/v1/rerank", "generative", query=QUERY, documents=TEXTS, **fields)["results"]
    logits = answered(
        models, "/v1/score", "generative", text_1=QUERY, text_2=TEXTS, use_activation=False, **fields
    )["data"]

    assert [entry["score"] for entry in scored] == pytest.approx(expected, abs=TOLERANCE)
    assert {entry["index"]: entry["relevance_score"] for entry in ranked} == {
        index: pytest.approx(score, abs=TOLERANCE) for index, score in enumerate(expected)
    }
    assert [1 / (1 + np.exp(-entry["score"])) for entry in logits] == pytest.approx(expected, abs=TOLERANCE)


def test_a_pair_is_classified_by_a_generative_reranker_as_its_token(models: Models, folder: Path) -> None:
    pair = {"text": QUERY, "text_pair": TEXTS[1]}

    [entry] = answered(models, "/v1/classifications", "generative", input=pair)["data"]

    [expected] = reference_probabilities(folder / "generative", [PairText(QUERY, TEXTS[1])])
    assert entry["scores"] == [{"label": "yes", "score": pytest.approx(expected, abs=TOLERANCE)}]


LONG = " ".join(WORDS) + " w1 w2 w3 w4 w5 w6"


@pytest.mark.parametrize(
    ("route", "fields", "place"),
    [
        ("/v1/classifications", {"input": ["w1", LONG]}, "input[1]"),
        ("/v1/rerank", {"query": QUERY, "documents": ["w1", "w2", LONG]}, "documents[2]"),
        ("/v1/score", {"text_1": QUERY, "text_2": LONG}, "text_2"),
        ("/v1/rerank", {"query": QUERY, "documents": ["w1", "w" * 100_000]}, "documents[1]"),
        ("/v1/rerank", {"query": QUERY, "documents": ["w1", "\ud800"]}, "documents[1]"),
        ("/v1/rerank", {"query": LONG, "documents": ["w1"]}, "query"),
        ("/v1/rerank", {"query": "w" * 100_000, "documents": ["w1"]}, "query"),
        ("/v1/score", {"text_1": ["w1", LONG], "text_2": ["w1", "w2"]}, "text_1[1]"),
        ("/v1/classifications", {"input": [{"text": LONG, "text_pair": "w1"}]}, "input[0].text"),
    ],
)
def test_a_text_that_is_too_long_or_none_is_refused_by_its_place(
    models: Models, route: str, fields: JsonObject, place: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        submit(models, route, {"model": "reranker", **fields})

    assert refused.value.param == place


def test_an_error_about_a_text_that_is_too_long_says_how_it_may_be_cut(models: Models) -> None:
    """A query is never cut, so nothing is said of that."""

    def said(query: str, document: str, **fields: object) -> str:
        body = {"model": "reranker", "query": query, "documents": ["w1", document], **fields}
        with pytest.raises(InvalidRequest) as refused:
            submit(models, "/v1/rerank", body)
        return refused.value.message

    advice = "With 'truncate_prompt_tokens': -1 its first tokens are taken."
    assert said(QUERY, LONG).endswith(advice)
    assert said(QUERY, "w" * 100_000).endswith(advice)
    assert advice not in said(LONG, "w1")
    assert "leave no room" in said(LONG, "w1", truncate_prompt_tokens=-1)


@pytest.mark.parametrize("tokens", [64, -1])
def test_a_document_is_cut_only_when_asked(models: Models, folder: Path, tokens: int) -> None:
    body = answered(models, "/v1/score", "reranker", text_1=QUERY, text_2=LONG, truncate_prompt_tokens=tokens)

    kept = " ".join(LONG.split()[: 64 - 3 - len(QUERY.split())])
    [expected] = reference_logits(folder / "reranker", [PairText(QUERY, kept)])[:, 0].tolist()
    assert body["usage"]["prompt_tokens"] == 64
    assert body["data"][0]["score"] == pytest.approx(1 / (1 + np.exp(-expected)), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("route", "model", "fields", "param", "said"),
    [
        ("/v1/rerank", "labels", {"query": "a", "documents": ["b"]}, "model", "has 3 labels"),
        ("/v1/score", "labels", {"text_1": "a", "text_2": "b"}, "model", "has 3 labels"),
        ("/v1/embeddings", "labels", {"input": "a"}, "model", "scores text"),
        (
            "/v1/classifications",
            "single",
            {"input": ["w1", {"text": "w1", "text_pair": "w2"}]},
            "input[1].text_pair",
            "takes one text",
        ),
        ("/v1/rerank", "quality", {"query": "w1", "documents": ["w2"]}, "documents[0]", "takes one text"),
        ("/v1/score", "quality", {"text_1": "w1", "text_2": "w2"}, "text_2", "takes one text"),
        (
            "/v1/classifications",
            "labels",
            {"input": "w1", "truncate_prompt_tokens": 65},
            "truncate_prompt_tokens",
            "must be 1 to 64",
        ),
        (
            "/v1/score",
            "reranker",
            {"text_1": LONG, "text_2": "w1", "truncate_prompt_tokens": 8},
            "text_1",
            "leave no room",
        ),
        (
            "/v1/rerank",
            "generative",
            {"query": LONG * 20, "documents": ["w1"]},
            "query",
            "context length is 1024 tokens.* leaves no room for another behind it",
        ),
        ("/v1/classifications", "generative", {"input": ["w1"]}, "input[0]", "takes a pair, not one text"),
        (
            "/v1/rerank",
            "reranker",
            {"query": QUERY, "documents": ["w1"], "instruction": "a"},
            "instruction",
            "reads no instruction",
        ),
        ("/v1/completions", "generative", {"prompt": "w1"}, "model", "scores text"),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name(
    models: Models, route: str, model: str, fields: JsonObject, param: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        submit(models, route, {"model": model, **fields})

    assert refused.value.param == param


def test_a_short_body_must_not_ask_for_a_long_answer(models: Models) -> None:
    models = Models([*models], answer_bytes_max=1_650)
    body = {"model": "labels", "input": ["w1", "w2"]}

    with pytest.raises(
        InvalidRequest, match=r"it is asked for with .input. 2\. Beside the others"
    ) as refused:
        submit(models, "/v1/classifications", body)

    assert (refused.value.param, refused.value.code) == ("input", "answer_too_large")
    fewer = submit(models, "/v1/classifications", {**body, "top_k": 2}).wait()
    assert [len(entry["scores"]) for entry in fewer.body["data"]] == [2, 2]


def test_scores_that_are_no_numbers_fail_the_request_and_no_other(folder: Path, tmp_path: Path) -> None:
    """An overflow that no check at load has seen: of one word."""
    directory = tmp_path / "overflowing"
    shutil.copytree(folder / "reranker", directory)
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights["bert.embeddings.word_embeddings.weight"][60] = 3e38
    save_file(weights, path, metadata={"format": "pt"})
    body = {"model": "overflowing", "text_1": "w1"}

    with started(directory) as models:
        bad = submit(models, "/v1/score", body | {"text_2": WORDS[56]}).wait()
        good = submit(models, "/v1/score", body | {"text_2": "w2"}).wait()

    assert (bad.status_code, good.status_code) == (500, 200)
    assert "no finite numbers" in bad.body["error"]["message"]


def test_what_is_no_classifier_is_refused_with_all_that_would_be_served(tmp_path: Path) -> None:
    directory = change_config(save_classifier(tmp_path), architectures=["BertForTokenClassification"])

    with pytest.raises(ConfigurationError) as refused:
        load(directory)

    for named in ("BertForTokenClassification classifies tokens", "decoders", "encoders", "classifiers"):
        assert named in refused.value.message


@pytest.mark.parametrize("model", ["reranker", "generative"])
def test_a_document_is_cut_to_its_own_tokens_and_the_query_is_not(
    models: Models, folder: Path, model: str
) -> None:
    document = " ".join(WORDS[:30])
    tokenizer = AutoTokenizer.from_pretrained(folder / model)
    cut = tokenizer.decode(tokenizer(document, add_special_tokens=False)["input_ids"][:5])

    def scores(documents: list[str], **more: Any) -> list[float]:
        body = answered(models, "/v1/rerank", model, query=QUERY, documents=documents, **more)
        return [
            entry["relevance_score"] for entry in sorted(body["results"], key=lambda entry: entry["index"])
        ]

    wanted = scores([cut, "w1"])
    assert scores([document, "w1"], max_tokens_per_doc=5) == pytest.approx(wanted, abs=TOLERANCE)
    assert scores([document, "w1"], max_tokens_per_doc=0) == scores([document, "w1"])
    assert scores([document, "w1"])[0] != pytest.approx(wanted[0], abs=TOLERANCE)


@pytest.mark.parametrize("model", ["labels", "generative"])
def test_a_classifier_shows_its_tokens(models: Models, folder: Path, model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / model)

    assert answered(models, "/v1/tokenize", model, prompt=QUERY)["tokens"] == tokenizer(QUERY)["input_ids"]


def test_a_classifier_moderates_and_answers_in_vllms_shape(models: Models) -> None:
    data = answered(models, "/v1/classifications", "labels", input=TEXTS)["data"]
    scores = [{label["label"]: label["score"] for label in one["scores"]} for one in data]

    moderated = answered(models, "/v1/moderations", "labels", input=TEXTS)["results"]
    assert [one["category_scores"] for one in moderated] == scores
    assert [[*one.values()] for one in scores] == [
        one["probs"] for one in answered(models, "/v1/classify", "labels", input=TEXTS)["data"]
    ]
