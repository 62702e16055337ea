"""Decoders that rank by yes and no: probabilities are those of plain transformers, alone and in batches."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from nightshift_engine import InvalidRequest
from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.encoders.scoring.classifier import ClassifierModel
from nightshift_engine.encoders.scoring.generative_reranker import GenerativeReranker
from nightshift_engine.encoders.scoring.labels import activated
from nightshift_engine.encoders.scoring.pairs import PairText
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.classifiers import change_config
from tests.unit.engine.tiny.decoders import CHAT_TEMPLATE
from tests.unit.engine.tiny.rerankers import (
    POSITIONS,
    TEMPLATE,
    VLLM,
    declare_logit_score,
    model_card_prompt,
    reference_probabilities,
    save_reranker,
)

TOLERANCE = 2e-5
PAIRS = [
    PairText("which river is the longest", "rivers carry water"),
    PairText("which river is the longest", "The Nile is 6,650 km long. " * 9),
    PairText("w", " a document that begins with a space, and ends with one "),
    PairText("Ünïcödé 漢字", "no"),
    PairText("yes", "rio"),
]


def probabilities(reranker: GenerativeReranker, pairs: list[PairText]) -> list[float]:
    logits = reranker.encode(reranker.tokenize_all(pairs))
    return [float(activated(row, reranker.labels.ranking_activation)[0]) for row in logits]


@pytest.mark.parametrize(
    ("family", "is_tied"),
    mostly_exhaustive(
        product(["qwen3", "llama", "gemma2"], [False, True]), default=[("qwen3", True), ("llama", False)]
    ),
)
def test_what_sentence_transformers_saves_has_the_probability_of_yes(
    tmp_path: Path, family: str, is_tied: bool
) -> None:
    directory = declare_logit_score(
        save_reranker(tmp_path, family, template=TEMPLATE, tie_word_embeddings=is_tied)
    )
    reranker = GenerativeReranker.load(directory, "float32", "cpu")

    expected = reference_probabilities(directory, PAIRS)

    assert np.ptp(expected) > 0.02, "pairs must have different scores for this to show anything"
    assert probabilities(reranker, PAIRS) == pytest.approx(expected, abs=TOLERANCE)
    alone = [probabilities(reranker, [pair])[0] for pair in PAIRS]
    assert alone == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("architecture", "template"),
    mostly_exhaustive(
        product(["Qwen3ForSequenceClassification", "Qwen3ForCausalLM"], [None, CHAT_TEMPLATE, TEMPLATE]),
        default=[
            ("Qwen3ForSequenceClassification", CHAT_TEMPLATE),
            ("Qwen3ForCausalLM", None),
            ("Qwen3ForCausalLM", TEMPLATE),
        ],
    ),
)
def test_what_vllm_is_told_of_has_the_prompt_of_the_model_card_unless_its_template_takes_pairs(
    tmp_path: Path, architecture: str, template: str | None
) -> None:
    directory = change_config(
        save_reranker(tmp_path, template=template), **VLLM | {"architectures": [architecture]}
    )
    reranker = GenerativeReranker.load(directory, "float32", "cpu")

    expected = reference_probabilities(directory, PAIRS)

    assert probabilities(reranker, PAIRS) == pytest.approx(expected, abs=TOLERANCE)


def test_an_instruction_is_the_requests_else_the_checkpoints(tmp_path: Path) -> None:
    directory = declare_logit_score(save_reranker(tmp_path, template=TEMPLATE), default="find rivers")
    reranker = GenerativeReranker.load(directory, "float32", "cpu")
    pairs = [PairText("q", "rivers"), PairText("q", "rivers", instruction="find what is no river")]

    expected = reference_probabilities(directory, pairs, default="find rivers")

    assert reranker.takes_instructions
    assert abs(expected[0] - expected[1]) > 1e-3
    assert probabilities(reranker, pairs) == pytest.approx(expected, abs=TOLERANCE)


def test_content_may_be_in_parts(tmp_path: Path) -> None:
    structured = TEMPLATE.replace("message.content", "message.content[0].text")
    directory = declare_logit_score(save_reranker(tmp_path, template=structured), format="structured")

    scores = probabilities(GenerativeReranker.load(directory, "float32", "cpu"), PAIRS)

    assert scores == pytest.approx(reference_probabilities(directory, PAIRS), abs=TOLERANCE)


def test_of_one_token_the_score_is_its_logit_as_the_checkpoint_wants_it(tmp_path: Path) -> None:
    directory = declare_logit_score(save_reranker(tmp_path, template=TEMPLATE))
    [two] = GenerativeReranker.load(directory, "float32", "cpu").labels.names
    reranker = GenerativeReranker.load(declare_logit_score(directory, no=None), "float32", "cpu")

    assert (two, reranker.labels.names) == ("yes", ("yes",))
    assert reranker.labels.ranking_activation == "identity"
    declare_logit_score(directory, no=None, activation="torch.nn.modules.activation.Sigmoid")
    assert GenerativeReranker.load(directory).labels.ranking_activation == "sigmoid"


@pytest.mark.parametrize("extra_tokens", [1, 7, 60])
def test_a_document_is_cut_and_what_is_behind_it_stays(tmp_path: Path, extra_tokens: int) -> None:
    directory = declare_logit_score(save_reranker(tmp_path, template=TEMPLATE))
    tokenizer = AutoTokenizer.from_pretrained(directory)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    document = " rivers carry water" * 400
    whole = model_card_prompt("q", document)
    behind = whole[whole.rindex("<|im_end|>\n<|im_start|>assistant") :]
    num_before = len(ids(model_card_prompt("q", "").removesuffix(behind)))
    limit = num_before + extra_tokens + len(ids(behind))

    reranker = GenerativeReranker.load(directory)
    [cut, short] = reranker.tokenize_all([PairText("q", document, limit), PairText("q", "w", limit)])

    kept = ids(whole.removesuffix(behind))[: num_before + extra_tokens]
    assert cut.token_ids == [*kept, *ids(behind)]
    assert len(cut) == limit
    assert short.token_ids == ids(model_card_prompt("q", "w"))


def test_a_reranker_has_the_context_of_its_positions_and_refuses_what_has_no_tokens(tmp_path: Path) -> None:
    reranker = GenerativeReranker.load(declare_logit_score(save_reranker(tmp_path, template=TEMPLATE)))

    assert reranker.max_length == POSITIONS
    assert reranker._model.get_output_embeddings().weight.shape == (2, 32), "only the rows that are read"
    with pytest.raises(InvalidRequest, match="40 tokens leave no room"):
        reranker.tokenize_all([PairText("q", "a document", 40)])
    with pytest.raises(InvalidRequest, match="UTF-8"):
        reranker.tokenize_all([PairText("q", "\ud800")])


def test_a_decoder_of_which_nothing_says_that_it_ranks_generates(tmp_path: Path) -> None:
    """Also one whose name ends in Reranker: the tokens alone may be left from a conversion."""
    directory = change_config(
        save_reranker(tmp_path / "Qwen3-Reranker", template=TEMPLATE), classifier_from_token=["no", "yes"]
    )

    assert read_kind(str(directory)).name == "decoder"
    declare_logit_score(directory)
    assert read_kind(str(directory)).name == "classifier"


def changed(file: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda directory: (directory / file).write_text(change((directory / file).read_text()))


def with_module(text: str) -> str:
    dense = {"path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}
    return json.dumps([*json.loads(text), dense])


def with_processing(text: str) -> str:
    return json.dumps(json.loads(text) | {"processing_kwargs": {"text": {"max_length": 9}}})


def without_message(text: str) -> str:
    config = json.loads(text)
    del config["modality_config"]["message"]
    return json.dumps(config)


SCORE, TRANSFORMER = "1_LogitScore/config.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed(TRANSFORMER, without_message), r"declares no .*prompt for its pairs \(message\)"),
        (changed(TRANSFORMER, with_processing), "more than add_generation_prompt"),
        (changed("modules.json", with_module), "Transformer, LogitScore, Dense"),
        (
            changed("modules.json", lambda text: text.replace("sentence_transformers.cross_encoder", "mine")),
            "its modules Transformer, LogitScore are none that we compute",
        ),
        *(
            (
                changed(SCORE, lambda _, id=id: json.dumps({"true_token_id": id})),
                f"by the token {id!r}, which its vocabulary has not",
            )
            for id in (-1, 10_000, None, True, "yes")
        ),
        (lambda directory: (directory / SCORE).unlink(), r"config\.json cannot be read"),
        (
            lambda directory: change_config(directory, auto_map={"AutoModelForCausalLM": "modeling.Mine"}),
            "code of their own",
        ),
    ],
)
def test_what_is_declared_otherwise_is_refused_by_name(tmp_path: Path, change: Any, reason: str) -> None:
    directory = declare_logit_score(save_reranker(tmp_path, template=TEMPLATE))
    (directory / "modeling.py").write_text("raise SystemExit('this was run')")
    change(directory)

    with pytest.raises((UnsupportedModel, ModelLoadFailed), match=reason):
        GenerativeReranker.load(directory)


UNSHOWN = 'does not show a message of the role "query"'


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        ("{{ messages[0].content }}", UNSHOWN),
        ("{{ messages[-1].content }}{{ messages[-2].content }}", UNSHOWN),
        ("{{ raise_exception('user first') }}", "user first"),
        ("{{ messages[-2].content }}<|im_end|>{{ messages[-1].content }}", None),
    ],
)
def test_a_template_must_show_the_pair_and_may_take_no_instruction(
    tmp_path: Path, template: str | None, reason: str | None
) -> None:
    directory = declare_logit_score(save_reranker(tmp_path, template=template))

    if reason is None:
        assert not GenerativeReranker.load(directory).takes_instructions
        return
    with pytest.raises(UnsupportedModel, match=reason):
        GenerativeReranker.load(directory)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"classifier_from_token": ["no", "yess"]}, "'yess', which is no token of its tokenizer"),
        ({"classifier_from_token": ["yes"]}, r"\['yes'\] for the method 'from_2_way_softmax'"),
        ({"is_original_qwen3_reranker": False, "method": "mine"}, "for the method 'mine'"),
    ],
)
def test_tokens_that_make_no_score_are_refused(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    directory = change_config(save_reranker(tmp_path, template=TEMPLATE), **VLLM | fields)

    with pytest.raises(UnsupportedModel, match=reason):
        GenerativeReranker.load(directory)


def test_a_reranker_converted_to_a_head_over_labels_reads_pairs_in_its_template(tmp_path: Path) -> None:
    """As sentence-transformers saves Qwen3-Reranker for sequence classification; a text alone is bare."""
    directory = save_reranker(
        tmp_path, template=TEMPLATE, auto_class=AutoModelForSequenceClassification, num_labels=1
    )
    declare_logit_score(directory, default="find rivers")
    (directory / "modules.json").write_text(
        json.dumps([{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}])
    )
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype="float32").eval()
    inputs = [*PAIRS, PairText("a text alone"), PairText("q", "rivers", instruction="find none")]
    prompts = [
        pair.text
        if pair.pair is None
        else model_card_prompt(pair.text, pair.pair, pair.instruction or "find rivers")
        for pair in inputs
    ]
    with torch.inference_mode():
        expected = [
            model(**tokenizer(prompt, add_special_tokens=False, return_tensors="pt")).logits[0]
            for prompt in prompts
        ]

    classifier = ClassifierModel.load(directory, "float32", "cpu")
    logits = classifier.encode(classifier.tokenize_all(inputs))

    assert (classifier.takes_pairs, classifier.takes_instructions) == (True, True)
    np.testing.assert_allclose(logits, torch.stack(expected).numpy(), atol=TOLERANCE, rtol=0)


def test_a_chat_template_alone_does_not_make_a_prompt_of_pairs(tmp_path: Path) -> None:
    directory = save_reranker(
        tmp_path, template=CHAT_TEMPLATE, auto_class=AutoModelForSequenceClassification, num_labels=1
    )

    assert not ClassifierModel.load(directory, "float32", "cpu").takes_pairs
