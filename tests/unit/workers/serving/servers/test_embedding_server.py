"""Embedding models behind their servers: what a request may ask of a checkpoint, and what is counted."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from nightshift import endpoints
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import ConfigurationError, InvalidRequest
from nightshift_engine.encoders import EncoderText
from tests.unit.engine.tiny.encoders import (
    TOLERANCE,
    WORDS,
    declare_modules,
    mean_and_normalize,
    reference,
    save_checkpoint,
    tiny_bert,
)
from tests.unit.workers.serving.conftest import started, submit
from workers.serving.models import Models
from workers.serving.servers.encoder_server import TEXTS_AT_ONCE, EmbeddingServer

ROUTE = "/v1/embeddings"
TEXT = "w1 w2 w3 w40"
TEXT_IDS = [2, 5, 6, 7, 44, 3]

Serve = Callable[..., Models]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as servers:
        yield lambda directory: servers.enter_context(started(directory))


@dataclass(frozen=True)
class Served:
    directory: Path
    models: Models


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = save_checkpoint(tmp_path_factory.mktemp("plain"), tiny_bert())
    with started(directory) as models:
        yield Served(directory, models)


@pytest.fixture(scope="module")
def matryoshka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = save_checkpoint(tmp_path_factory.mktemp("matryoshka"), tiny_bert())
    with started(change_config(directory, is_matryoshka=True)) as models:
        yield Served(directory, models)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = with_prompts(tmp_path_factory.mktemp("prompted"))
    with started(directory) as models:
        yield Served(directory, models)


def change_config(directory: Path, **fields: object) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return directory


def ask(models: Models, text: object = TEXT, **fields: object) -> Any:
    return submit(models, ROUTE, {"model": models.ids[0], "input": text, **fields}).wait()


def vectors_of(answer: Any) -> NDArray[np.float32]:
    return np.array([entry["embedding"] for entry in answer.body["data"]], dtype=np.float32)


def refused(models: Models, text: object = TEXT, **fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        submit(models, ROUTE, {"model": models.ids[0], "input": text, **fields})
    return error.value


def assert_embeds(answer: Any, served: Served, *token_ids: Sequence[int]) -> None:
    """The vectors are those of the reference for these tokens."""
    expected = reference(served.directory, [[*ids] for ids in token_ids], mean_and_normalize)
    np.testing.assert_allclose(vectors_of(answer), expected, atol=TOLERANCE, rtol=0)


# --- dimensions ---


def test_vectors_are_cut_and_have_unit_length_again(matryoshka: Served) -> None:
    directory, models = matryoshka.directory, matryoshka.models

    [vector] = vectors_of(ask(models, dimensions=8))

    [whole] = reference(directory, [TEXT_IDS], mean_and_normalize)
    np.testing.assert_allclose(vector, whole[:8] / np.linalg.norm(whole[:8]), atol=TOLERANCE, rtol=0)
    assert vectors_of(ask(models, dimensions=32)).shape == (1, 32)
    assert np.abs(vectors_of(ask(models, ["w1", "w2"], dimensions=1))).tolist() == [[1], [1]]


@pytest.mark.parametrize("dimensions", [0, -1, 33, 10**12, 1.5, "8"])
def test_a_size_that_there_is_not_is_refused_by_its_field(matryoshka: Served, dimensions: object) -> None:
    assert refused(matryoshka.models, dimensions=dimensions).param == "dimensions"


def test_a_checkpoint_that_does_not_say_so_is_cut_only_if_the_operator_does(
    tmp_path: Path, serve: Serve, plain: Served
) -> None:
    assert "nothing says that its vectors can be cut" in refused(plain.models, dimensions=8).message

    directory = save_checkpoint(tmp_path / "tiny", tiny_bert())

    (directory / "nightshift.yaml").write_text("matryoshka_dimensions: [8, 16]\n")
    models = serve(directory)
    assert vectors_of(ask(models, dimensions=16)).shape == (1, 16)
    assert "must be one of 8, 16, 32, got 9" in refused(models, dimensions=9).message


def test_the_operator_may_forbid_what_a_checkpoint_says(tmp_path: Path, serve: Serve) -> None:
    directory = change_config(save_checkpoint(tmp_path, tiny_bert()), is_matryoshka=True)
    (directory / "nightshift.yaml").write_text("is_matryoshka: false\n")

    assert refused(serve(directory), dimensions=8).param == "dimensions"


# --- truncate_prompt_tokens ---


LONG = " ".join(WORDS * 3)  # 180 words, for a model of 64 tokens


def test_a_text_that_is_too_long_is_refused_unless_it_may_be_cut(plain: Served) -> None:
    models = plain.models

    error = refused(models, ["w1", LONG])
    assert (error.param, error.code) == ("input", "context_length_exceeded")
    assert error.message.startswith(
        "This model's maximum context length is 64 tokens. However, input 1 has 182 tokens."
    )
    assert error.message.endswith("With 'truncate_prompt_tokens': -1 its first tokens are taken.")

    answer = ask(models, ["w1", LONG, "w2"], truncate_prompt_tokens=-1)
    assert_embeds(answer, plain, [2, 5, 3], [2, *range(4, 64), 4, 5, 3], [2, 6, 3])
    tokens = 3 + 64 + 3
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "truncated_inputs": 1}
    assert answer.body["usage"] == usage


@pytest.mark.parametrize(
    ("given", "tokens", "kept", "is_cut"),
    [
        (TEXT, 5, [2, 5, 6, 7, 3], 1),
        (TEXT, 6, TEXT_IDS, 0),
        (TEXT_IDS, 5, TEXT_IDS[:5], 1),
        (TEXT, None, TEXT_IDS, None),
    ],
)
def test_a_text_is_cut_to_what_is_asked_for(
    plain: Served, given: object, tokens: int | None, kept: list[int], is_cut: int | None
) -> None:
    answer = ask(plain.models, given, **({"truncate_prompt_tokens": tokens} if tokens else {}))

    assert_embeds(answer, plain, kept)
    assert answer.body["usage"].get("truncated_inputs") == is_cut


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        (0, LONG, "input 0 has "),
        (70, LONG, "input 70 has "),
        (0, [10**6], "a token id"),
        (70, "\ud800", "UTF-8"),
    ],
)
def test_of_many_texts_none_is_tokenised_far_behind_the_first_that_is_refused(
    plain: Served, monkeypatch: pytest.MonkeyPatch, place: int, wrong: object, said: str
) -> None:
    models = plain.models
    [server] = models
    assert isinstance(server, EmbeddingServer)
    encode, counts = server.encode, Counter[str]()

    def counted(texts: Sequence[EncoderText]) -> Sequence[Any]:
        counts.update(text.text for text in texts)
        return encode(texts)

    monkeypatch.setattr(server, "encode", counted)
    texts: list[Any] = ["w1"] * 2_048
    texts[place] = wrong

    error = refused(models, texts)

    assert said in error.message.lower() or said in error.message
    assert counts["w1"] < 2 * (place // TEXTS_AT_ONCE + 1) * TEXTS_AT_ONCE
    texts[place] = "w2"
    assert len(vectors_of(ask(models, texts))) == 2_048
    few, many = server.tokenize(endpoints.get(ROUTE), [parsed(["w1", "w2"]), parsed(texts)])
    assert isinstance(few, list)
    assert isinstance(many, list)
    assert [many[place + 1], many[place]] == few


def parsed(text: object) -> ModelRequest:
    return endpoints.get(ROUTE).parse({"model": "m", "input": text})


@pytest.mark.parametrize("tokens", [0, -2, 65, 2, 1.5, "5"])
def test_a_length_to_which_nothing_can_be_cut_is_refused(plain: Served, tokens: object) -> None:
    error = refused(plain.models, TEXT, truncate_prompt_tokens=tokens)

    assert error.param == ("input" if tokens == 2 else "truncate_prompt_tokens")
    if tokens == 2:
        assert "2 tokens leave no room for the text" in error.message


def test_a_megabyte_that_is_cut_is_answered(plain: Served) -> None:
    models, text = plain.models, LONG * 2_000
    assert len(text) > 10**6

    answer = ask(models, text, truncate_prompt_tokens=64)

    assert answer.body["usage"] == {"prompt_tokens": 64, "total_tokens": 64, "truncated_inputs": 1}
    assert refused(models, text).code == "context_length_exceeded"


# --- prompts ---


PROMPTS = {"prompts": {"query": "w50 w51 ", "passage": "", "title": "w52 "}, "default_prompt_name": "title"}


def with_prompts(directory: Path, *, include_prompt: bool = True, **config: object) -> Path:
    save_checkpoint(directory, tiny_bert())
    pooling = {"pooling_mode": "mean", "include_prompt": include_prompt}
    declare_modules(directory, pooling, "Transformer", "Pooling", "Normalize")
    (directory / "config_sentence_transformers.json").write_text(json.dumps(PROMPTS | config))
    return directory


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, [56]),
        ({"prompt_name": "query"}, [54, 55]),
        ({"prompt_name": "passage"}, []),
        ({"input_type": "query"}, [54, 55]),
        ({"input_type": "search_query"}, [54, 55]),
        ({"input_type": "search_document"}, []),
        ({"input_type": "title"}, [56]),
    ],
)
def test_a_prompt_comes_before_a_text_and_its_tokens_count(
    prompted: Served, fields: dict[str, str], prompt: list[int]
) -> None:
    answer = ask(prompted.models, "w1 w2", **fields)

    assert_embeds(answer, prompted, [2, *prompt, 5, 6, 3])
    assert answer.usage.prompt_tokens == len(prompt) + 4


@pytest.mark.parametrize("field", ["prompt_name", "input_type"])
def test_a_prompt_that_a_checkpoint_has_not_is_refused_with_those_that_it_has(
    prompted: Served, plain: Served, field: str
) -> None:
    models = prompted.models
    error = refused(models, **{field: "classification"})
    assert (error.param, error.code) == (field, "invalid_value")
    assert "no prompt 'classification': it has passage, query, title" in error.message

    none = refused(plain.models, **{field: "query"})
    assert (none.param, "it has none" in none.message) == (field, True)
    assert refused(models, TEXT_IDS, **{field: "query"}).param == field
    assert "give one" in refused(models, prompt_name="query", input_type="query").message


def test_a_pooling_may_leave_the_prompts_tokens_out(tmp_path: Path, serve: Serve) -> None:
    """The special token before them goes too, as in sentence-transformers; other tokens see them all the
    same.
    """
    directory = with_prompts(tmp_path, include_prompt=False, default_prompt_name=None)
    models = serve(directory)
    texts, words = ["w1 w2", " ".join(WORDS[:40])], [[5, 6], [*range(4, 44)]]

    def pool(tokens: torch.Tensor) -> torch.Tensor:
        return mean_and_normalize(tokens[3:])

    expected = reference(directory, [[2, 54, 55, *ids_of_words, 3] for ids_of_words in words], pool)
    answer = ask(models, texts, prompt_name="query")
    np.testing.assert_allclose(vectors_of(answer), expected, atol=TOLERANCE, rtol=0)
    plain = ask(models, texts)
    assert_embeds(plain, Served(directory, models), *([2, *ids_of_words, 3] for ids_of_words in words))


def test_a_text_behind_a_prompt_is_cut_with_it(prompted: Served) -> None:
    answer = ask(prompted.models, "w1 w2", prompt_name="query", truncate_prompt_tokens=5)

    assert_embeds(answer, prompted, [2, 54, 55, 5, 3])
    assert answer.body["usage"]["truncated_inputs"] == 1
    error = refused(prompted.models, "w1 w2", prompt_name="query", truncate_prompt_tokens=3)
    assert "3 tokens leave no room for the text" in error.message


@pytest.mark.parametrize("said", [{"prompts": {"query": 5}}, {"prompts": [1]}, {"default_prompt_name": "no"}])
def test_prompts_that_are_no_texts_are_refused_at_load(
    tmp_path: Path, serve: Serve, said: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match=r"config_sentence_transformers\.json"):
        serve(with_prompts(tmp_path, **said))


def test_a_text_may_come_without_special_tokens_and_then_has_no_prompt(
    prompted: Served, plain: Served
) -> None:
    cut = ask(plain.models, "w1 w2 w3", add_special_tokens=False, truncate_prompt_tokens=2)

    assert_embeds(ask(plain.models, ["w1 w2", [5]], add_special_tokens=False), plain, [5, 6], [5])
    assert_embeds(cut, plain, [5, 6])
    assert cut.body["usage"]["truncated_inputs"] == 1
    assert_embeds(ask(prompted.models, "w1", add_special_tokens=False), prompted, [5])
    error = refused(prompted.models, "w1", add_special_tokens=False, prompt_name="query")
    assert error.param == "prompt_name"


TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}w3{% endif %}"
SAID = [{"role": "user", "content": "w1"}, {"role": "critic", "content": "w2"}]


def test_a_conversation_is_embedded_as_its_template_writes_it(
    tmp_path: Path, serve: Serve, plain: Served
) -> None:
    directory = save_checkpoint(tmp_path, tiny_bert())
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    served = Served(directory, serve(directory))
    begun = ask(served.models, None, messages=SAID, add_generation_prompt=True)
    cut = ask(served.models, None, messages=SAID, truncate_prompt_tokens=1)

    assert_embeds(ask(served.models, None, messages=SAID), served, [5, 6])
    assert_embeds(begun, served, [5, 6, 7])
    assert_embeds(cut, served, [5])
    assert_embeds(ask(served.models, None, messages=SAID, add_special_tokens=True), served, [2, 5, 6, 3])
    assert (begun.body["usage"]["prompt_tokens"], cut.body["usage"]["truncated_inputs"]) == (3, 1)
    long = refused(served.models, None, messages=[{"role": "user", "content": "w1 " * 600}])
    assert (long.param, long.code) == ("messages", "context_length_exceeded")
    assert refused(served.models, None, messages=SAID, prompt_name="query").param == "prompt_name"
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    assert refused(served.models, None, messages=image).param == "messages[0].content[0]"
    without = refused(plain.models, None, messages=SAID)
    assert (without.param, "has no chat template" in without.message) == ("messages", True)


def test_a_vector_that_is_no_numbers_fails_its_request_and_no_other(tmp_path: Path, serve: Serve) -> None:
    """An overflow that no check at load has seen: of one word."""
    path = save_checkpoint(tmp_path, tiny_bert()) / "model.safetensors"
    weights = load_file(path)
    weights["embeddings.word_embeddings.weight"][60] = 3e38
    save_file(weights, path, metadata={"format": "pt"})
    models = serve(tmp_path)

    bad, good = ask(models, ["w1", WORDS[56]]), ask(models, "w1")

    assert (bad.status_code, good.status_code) == (500, 200)
    assert "its vectors are no finite numbers" in bad.body["error"]["message"]
