"""An encoder-decoder behind its server: what a translation may ask, and what it is refused for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.errors import ConfigurationError, InvalidRequest
from tests.unit.engine.tiny.decoders import EOS, byte_tokenizer
from tests.unit.engine.tiny.seq2seq import LANGUAGES, POSITIONS, generate, save_seq2seq
from tests.unit.workers.serving.conftest import Listener, load, started, submit
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.models import Models

TEXT = "good morning"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    there = tmp_path_factory.mktemp("seq2seq")
    return [
        save_seq2seq(there / "marian", "marian"),
        save_seq2seq(there / "m2m", "m2m_100", has_languages=True),
    ]


@pytest.fixture(scope="module")
def models(directories: list[Path]) -> Iterator[Models]:
    with started(*directories, engine_num_kv_blocks=64) as models:
        yield models


def translate(models: Models, model: str = "marian", id: str = "row", **fields: Any) -> Listener:
    carry_over = fields.pop("carry_over", None)
    body = {"model": model, "prompt": TEXT, **fields}
    return submit(models, "/v1/completions", body, id=id, carry_over=carry_over)


def text_of(listener: Listener) -> str:
    return str(listener.wait().body["choices"][0]["text"])


def expected(directory: Path, source: list[int], **settings: Any) -> str:
    (ids,) = generate(directory, [source], POSITIONS - 2, eos_token_id=EOS, **settings)
    return str(byte_tokenizer().decode(ids, skip_special_tokens=True))


def test_a_translation_is_greedy_and_as_long_as_it_gets(models: Models, directories: list[Path]) -> None:
    source = byte_tokenizer()(TEXT)["input_ids"]
    listener = translate(models)
    answer = listener.wait()

    assert answer.body["choices"][0]["text"].startswith(expected(directories[0], source).rstrip("\ufffd"))
    assert len(listener.token_ids) > 16 or answer.body["choices"][0]["finish_reason"] == "stop"
    assert answer.body["usage"]["prompt_tokens"] == len(source)


def test_several_prompts_and_choices_are_each_answered(models: Models) -> None:
    alone = [text_of(translate(models, prompt=prompt, max_tokens=5)) for prompt in ("one", "two")]
    answer = translate(models, prompt=["one", "two"], n=2, max_tokens=5, num_beams=1).wait()
    assert [choice["text"] for choice in answer.body["choices"]] == [alone[0]] * 2 + [alone[1]] * 2


def test_tokens_of_an_earlier_attempt_are_continued(models: Models) -> None:
    whole = translate(models, max_tokens=9)
    answer = whole.wait()
    carry_over = CarryOver([ChoiceSoFar(whole.token_ids[:4])])
    continued = translate(models, max_tokens=9, carry_over=carry_over)

    assert continued.wait().body == answer.body
    assert continued.token_ids == whole.token_ids


def test_a_target_language_is_what_the_decoder_reads_first(models: Models, directories: list[Path]) -> None:
    source = byte_tokenizer()(TEXT)["input_ids"]
    said = {}
    for language, code in LANGUAGES.items():
        said[language] = translate(models, "m2m", target_language=language, max_tokens=8)
        (ids,) = generate(directories[1], [source], 9, forced_bos_token_id=code)
        said[language].wait()
        assert said[language].token_ids == ids[1:9][: len(said[language].token_ids)]
    assert len({tuple(choice.token_ids) for choice in said.values()}) > 1


@pytest.mark.parametrize(
    ("model", "fields", "param", "reason"),
    [
        ("m2m", {"target_language": "xx_XX"}, "target_language", "no language 'xx_XX', only de_DE, en_XX"),
        ("m2m", {"target_language": "fr_XX", "source_language": "q"}, "source_language", "no language 'q'"),
        ("m2m", {}, "target_language", "missing"),
        ("m2m", {"target_language": "fr_XX", "source_language": "en_XX"}, "source_language", "without a"),
        ("marian", {"target_language": "fr_XX"}, "target_language", "not supported by this model"),
        ("marian", {"num_beams": 4}, "num_beams", "not supported"),
        ("marian", {"prompt": "x" * (POSITIONS + 1)}, "prompt", "exceeds the encoder's input"),
        ("marian", {"max_tokens": POSITIONS + 1}, "max_tokens", "too large"),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_field(
    models: Models, model: str, fields: dict[str, Any], param: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translate(models, model, **fields)
    assert refused.value.param == param
    assert reason in refused.value.message


def test_it_does_not_chat(models: Models) -> None:
    body = {"model": "marian", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(InvalidRequest, match="translates"):
        submit(models, "/v1/chat/completions", body)


def test_a_checkpoint_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "bart")
    path = tmp_path / "config.json"
    auto_map = '{"auto_map": {"AutoConfig": "mine.Config"}, "model_type": "mine",'
    path.write_text(path.read_text().replace('"model_type": "bart",', "").replace("{", auto_map, 1))
    with pytest.raises(ConfigurationError, match="cannot be served"):
        load(tmp_path)
