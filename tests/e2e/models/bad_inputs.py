"""Bad inputs of every model kind: what replaces some of a good one, and what its error says."""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.errors import InvalidRequest
from tests.unit.engine.encoders.images.test_decoding import PAGE, SVG, png_header
from tests.unit.engine.tiny.classifiers import save_classifier, save_tokenizer
from tests.unit.engine.tiny.encoders import declare_modules, save_checkpoint, tiny_bert
from tests.unit.engine.tiny.images import as_bytes, picture, save_image_model
from tests.unit.engine.tiny.seq2seq import POSITIONS, save_seq2seq

MODELS = ("embedder", "single", "reranker", "animals", "m2m")
"""Beside the demo model."""


def image(data: bytes) -> dict[str, str]:
    return {"image": f"data:image/png;base64,{base64.b64encode(data).decode()}"}


@dataclass(frozen=True)
class Question:
    """A good request of a model, and for each bad one its other fields, the error's `param` and its words."""

    route: str
    good: dict[str, Any]
    bad: tuple[tuple[dict[str, Any], str, str], ...]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The good one first."""
        return [self.good, *(self.good | fields for fields, _, _ in self.bad)]

    @property
    def refused_early(self) -> set[int]:
        """Numbers of the bodies for which a batch file is refused before any of its rows runs."""
        return {number for number, body in enumerate(self.bodies) if self._is_refused(body)}

    def _is_refused(self, body: dict[str, Any]) -> bool:
        try:
            endpoints.get(self.route).check_line(body)
        except InvalidRequest:
            return True
        return False


QUESTIONS = (
    Question(
        "/v1/chat/completions",
        {"model": "demo_model", "messages": [{"role": "user", "content": "48213"}], "max_tokens": 2},
        (
            ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
            (
                {"continue_final_message": True, "add_generation_prompt": True},
                "continue_final_message",
                "add_generation_prompt",
            ),
            ({"function_call": "auto"}, "function_call", "'functions'"),
            ({"truncate_prompt_tokens": 8}, "truncate_prompt_tokens", "not supported by this endpoint"),
            ({"stop_token_ids": [10**9]}, "stop_token_ids", "outside the vocabulary"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                "messages[0].content[0]",
                "image_url",
            ),
            ({"messages": [{"role": "user", "content": "7" * 9_000}]}, "messages", "context"),
        ),
    ),
    Question(
        "/v1/completions",
        {"model": "m2m", "prompt": "good morning", "target_language": "fr_XX", "max_tokens": 3},
        (
            ({"target_language": "xx_XX"}, "target_language", "no language 'xx_XX'"),
            ({"source_language": "??"}, "source_language", "no language '??'"),
            ({"num_beams": 4}, "num_beams", "not supported"),
            ({"prompt": [[1, -1]]}, "prompt[0][1]", "at least 0"),
            ({"prompt": [[10**9]]}, "prompt", "outside"),
            ({"prompt": ""}, "prompt", "no tokens"),
            ({"prompt": "x" * (POSITIONS + 1)}, "prompt", "exceeds the encoder's input"),
            ({"echo": True}, "echo", "is for decoders"),
            ({"best_of": 2}, "best_of", "not supported"),
        ),
    ),
    Question(
        "/v1/embeddings",
        {"model": "embedder", "input": ["w1 w2", "w3"]},
        (
            ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
            ({"dimensions": 33}, "dimensions", "32"),
            ({"input": ["w1", ""]}, "input", "input[1]"),
            ({"input": []}, "input", ""),
            ({"input": ["w1"] * 10_000}, "input", "2048"),
            ({"input": [10**9]}, "input", "outside"),
            ({"input": "w1 " * 1_000}, "input", "64"),
            ({"input": {"image": "file:///etc/passwd"}}, "input", "image"),
            ({"encoding_format": "int8"}, "encoding_format", "float"),
            ({"normalize": True}, "normalize", "not supported by this endpoint"),
        ),
    ),
    Question(
        "/v1/classifications",
        {"model": "animals", "input": image(as_bytes(picture(1)))},
        (
            ({"input": image(png_header(0, 0))}, "input.image", ""),
            ({"input": image(png_header(30_000, 30_000))}, "input.image", "30000 x 30000 pixels"),
            ({"input": image(as_bytes(picture(7, 400, 400), "JPEG")[:2000])}, "input.image", "truncated"),
            ({"input": image(SVG)}, "input.image", "SVG drawing"),
            ({"input": image(PAGE)}, "input.image", "web page"),
            ({"input": {"image": "https://10.0.0.1/cat.jpg"}}, "input.image", "may not"),
            ({"input": {"image": "file:///etc/passwd"}}, "input.image", "may not name"),
            ({"input": "w1"}, "input", "image"),
        ),
    ),
    Question(
        "/v1/classifications",
        {"model": "single", "input": "w1"},
        (
            ({"input": {"text": "w1", "text_pair": "w2"}}, "input.text_pair", "one text"),
            ({"input": []}, "input", "1 to 2048"),
            ({"input": ["w1"] * 10_000}, "input", "1 to 2048"),
            ({"input": image(SVG)}, "input.image", "text"),
            ({"top_k": 0}, "top_k", "greater than or equal to 1"),
        ),
    ),
    Question(
        "/v1/rerank",
        {"model": "reranker", "query": "w1", "documents": ["w2", "w3"]},
        (
            ({"documents": []}, "documents", "1 to 2048"),
            ({"documents": ["w2"] * 10_000}, "documents", "1 to 2048"),
            ({"documents": ["w2", ""]}, "documents", "documents[1]"),
            ({"query": ""}, "query", ""),
            ({"top_n": 0}, "top_n", "greater than or equal to 1"),
            ({"documents": ["w2", "w3 " * 1_000]}, "documents[1]", "64"),
            ({"max_tokens_per_doc": -1}, "max_tokens_per_doc", "greater than or equal to 0"),
        ),
    ),
    Question(
        "/v1/tokenize",
        {"model": "demo_model", "prompt": "48213"},
        (
            ({"messages": [{"role": "user", "content": "7"}]}, "messages", "'prompt' is another text"),
            ({"prompt": "7" * 40_000}, "prompt", "context"),
            ({"prompt": None}, "prompt", "Missing"),
        ),
    ),
    Question(
        "/v1/detokenize",
        {"model": "demo_model", "tokens": [5, 6]},
        (
            ({"tokens": [5, 10**9]}, "tokens[1]", "no token"),
            ({"tokens": [-1]}, "tokens[0]", "greater than or equal to 0"),
            ({"tokens": "48213"}, "tokens", "an array"),
        ),
    ),
    Question(
        "/v1/moderations",
        {"model": "single", "input": "w1"},
        (
            ({"input": [{"type": "image_url"}]}, "input", "image_url"),
            ({"input": []}, "input", "1 to 2048"),
        ),
    ),
    Question(
        "/v1/score",
        {"model": "reranker", "text_1": "w1", "text_2": ["w2", "w3"]},
        (
            ({"queries": "w1"}, "queries", "'text_1' names the same texts"),
            ({"text_1": ["w1", "w2", "w3"]}, "text_2", "as many"),
            ({"text_2": 7}, "text_2", "a text or a list"),
            ({"text_2": []}, "text_2", "1 to 2048"),
        ),
    ),
)


@dataclass(frozen=True)
class Table:
    """Columns for a template. The first row is good, the others have what is wrong with them."""

    name: str
    endpoint: str
    template: dict[str, Any]
    columns: dict[str, Any]
    bad: tuple[tuple[str | None, str], ...]
    """The `param` and some words of each bad row's error."""

    @property
    def rows(self) -> int:
        return 1 + len(self.bad)


def _uri(data: bytes) -> str:
    return image(data)["image"]


TABLES = (
    Table(
        "chats",
        "chat",
        {"model": "demo_model", "messages": [{"role": "user", "content": "{{text}}"}], "max_tokens": "{{n}}"},
        {"text": ["48213", None, "7" * 9_000, "1"], "n": [2, 2, 2, 0]},
        (
            ("messages[0].content", "content"),
            ("messages", "context"),
            ("max_tokens", "greater than or equal to 1"),
        ),
    ),
    Table(
        "translations",
        "completions",
        {"model": "m2m", "prompt": "{{text}}", "target_language": "{{to}}", "max_tokens": 3},
        {
            "text": ["good morning", "good morning", "good morning", None, ""],
            "to": ["fr_XX", "xx_XX", None, "fr_XX", "fr_XX"],
        },
        (
            ("target_language", "no language 'xx_XX'"),
            ("target_language", ""),
            ("prompt", ""),
            ("prompt", ""),
        ),
    ),
    Table(
        "embeddings",
        "embeddings",
        {"model": "embedder", "input": "{{text}}", "dimensions": "{{d}}"},
        {"text": ["w1", "", None, "w1 " * 1_000, "w1", "w1"], "d": [32, 32, 32, 32, 0, 33]},
        (
            ("input", "empty"),
            ("input", ""),
            ("input", "64"),
            ("dimensions", "greater than or equal to 1"),
            ("dimensions", "32"),
        ),
    ),
    Table(
        "photos-of-a-table",
        "classifications",
        {"model": "animals", "input": {"image": "{{image}}"}},
        {
            "image": [
                _uri(as_bytes(picture(1))),
                _uri(png_header(30_000, 30_000)),
                _uri(SVG),
                "https://10.0.0.1/cat.jpg",
                "file:///etc/passwd",
                "",
                None,
            ]
        },
        (
            ("input.image", "30000 x 30000 pixels"),
            ("input.image", "SVG drawing"),
            ("input.image", "may not"),
            ("input.image", "may not name"),
            ("input", "input.image must be a text: a data URI"),
            ("input", "input.image must be a text: a data URI"),
        ),
    ),
    Table(
        "labels",
        "classifications",
        {"model": "single", "input": "{{text}}", "top_k": "{{k}}"},
        {"text": ["w1", "", None, "w1", "w1 " * 1_000], "k": [1, 1, 1, 0, 1]},
        (
            ("input", "empty"),
            ("input", ""),
            ("top_k", "greater than or equal to 1"),
            ("input", "length is 64 tokens"),
        ),
    ),
    Table(
        "rankings",
        "rerank",
        {"model": "reranker", "query": "{{query}}", "documents": "{{documents}}"},
        {
            "query": ["w1", "w1", "w1", "w1", "", None, "w1"],
            "documents": [["w2", "w3"], [], ["w2", ""], ["w2", None], ["w2"], ["w2"], None],
        },
        (
            ("documents", "1 to 2048"),
            ("documents", "documents[1]"),
            ("documents", "documents[1]"),
            ("query", ""),
            ("query", ""),
            ("documents", ""),
        ),
    ),
    Table(
        "scores",
        "score",
        {"model": "reranker", "text_1": "{{a}}", "text_2": "{{b}}"},
        {"a": ["w1", "", None, "w1"], "b": ["w2", "w2", "w2", "w2 " * 1_000]},
        (
            ("text_1", ""),
            ("text_1", ""),
            ("text_2", "64"),
        ),
    ),
)


def each_of(questions: Sequence[Question], *, kept: int | None = None) -> pytest.MarkDecorator:
    """Parametrizes `question`; those after the first `kept` are left to the long run."""
    return pytest.mark.parametrize(
        "question",
        [
            pytest.param(
                question,
                id=f"{question.good['model']} {question.route[4:]}",
                marks=() if kept is None or number < kept else pytest.mark.exhaustive,
            )
            for number, question in enumerate(questions)
        ],
    )


def check_error(error: dict[str, Any], wanted: tuple[dict[str, Any], str, str]) -> None:
    fields, param, said = wanted
    assert error["param"] == param, (str(fields)[:200], error)
    assert said in error["message"], error
    assert error["code"], error


def lines(question: Question, numbers: Iterable[int]) -> bytes:
    rows = (
        {"custom_id": str(number), "method": "POST", "url": question.route, "body": question.bodies[number]}
        for number in numbers
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def save_models(folder: Path) -> None:
    """`MODELS`, each a directory."""
    embedder = save_checkpoint(folder / "embedder", tiny_bert())
    declare_modules(embedder, {"pooling_mode": "mean"}, "Transformer", "Pooling", "Normalize")
    save_classifier(folder / "single", "llama", num_labels=2)
    save_tokenizer(folder / "single", has_types=False, has_pairs=False, pad_token=None)
    save_classifier(folder / "reranker", "bert", num_labels=1)
    save_image_model(folder / "animals", "ViT", id2label={0: "cat", 1: "dog"}, label2id=None)
    save_seq2seq(folder / "m2m", "m2m_100", has_languages=True)
