"""The tokenizer's own: text and conversations to ids, what a token's bytes are, and stop strings."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift_engine import InvalidRequest
from nightshift_engine.errors import ChatTemplateFailed
from nightshift_engine.text.decoders import StopMatcher
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.decoders import EOS, byte_tokenizer
from tests.unit.engine.tiny.tokenizers import BPE, BYTES, CORPUS, FALLBACK


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, FALLBACK])
@pytest.mark.parametrize("text", CORPUS)
def test_the_bytes_of_tokens_make_up_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    known = "<unk>" not in [tokenizer._backend.id_to_token(id) for id in ids]

    assert not known or b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip(" ") == text


def test_the_bytes_of_half_a_character_are_half_a_character() -> None:
    assert [BYTES.token_bytes(id) for id in BYTES.encode("é")] == [b"\xc3", b"\xa9"]
    assert [FALLBACK.token_bytes(id) for id in FALLBACK.encode("é")[1:]] == [b"\xc3", b"\xa9"]
    assert FALLBACK.token_bytes(FALLBACK.encode("Hello world")[1]) == b" world"


def test_a_special_token_is_spelled_but_leaves_no_text() -> None:
    assert BYTES.token_bytes(EOS) == b"<eos>"
    assert BYTES.is_special(EOS)
    assert not BYTES.is_special(65)
    assert BYTES.token_bytes(5_000) == b""


def first_stop_letter_by_letter(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: read letter by letter, end where the first stop string (the longest) is complete."""
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(map(len, matching))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=10),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_a_stop_string_is_found_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    matcher, emitted = StopMatcher(stops), ""
    for piece in pieces:
        emitted += matcher.push(piece)
    emitted += matcher.flush()

    assert (emitted, matcher.is_hit) == first_stop_letter_by_letter("".join(pieces), stops)


def test_only_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["</answer>"])

    assert [matcher.push(piece) for piece in ["a <", "/", "b </ans", "wer>", "late"]] == [
        "a ",
        "",
        "</b ",
        "",
        "",
    ]
    assert matcher.is_hit


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_many_texts_have_the_tokens_that_each_has_alone(tokenizer: Tokenizer) -> None:
    texts = ["", "night", "🌙 day", "<user>", "a" * 1000]

    assert tokenizer.encode_all(texts) == [tokenizer._hf(text)["input_ids"] for text in texts]


def test_a_conversations_text_has_the_tokens_that_the_library_gives_it() -> None:
    messages = [{"role": "user", "content": "hi <user> 🌙"}]
    expected = BYTES._hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    assert BYTES.encode_all([BYTES.chat_text(messages)], add_special_tokens=False) == [expected]
    assert BYTES.render_chat(messages) == expected


def test_a_model_without_a_chat_template_says_so() -> None:
    with pytest.raises(ChatTemplateFailed, match="no chat template"):
        BPE.render_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        ("{{ raise_exception('roles must alternate') }}", [{"role": "user", "content": "x"}]),
        ("{{ messages[0]['content'] + 1 }}", [{"role": "user", "content": "x"}]),
        ("{% if %}", [{"role": "user", "content": "x"}]),
        ("{{ 1 // (messages[0]['content'] | length) }}", [{"role": "user", "content": ""}]),
        ("{{ messages[0]['content'].format() }}", [{"role": "user", "content": "{}"}]),
    ],
    ids=["refuses", "type error", "syntax error", "division by zero", "index error"],
)
def test_a_template_that_fails_is_the_requests_fault_not_the_engines(
    template: str, messages: list[dict[str, Any]]
) -> None:
    hf_tokenizer = byte_tokenizer()
    hf_tokenizer.chat_template = template
    with pytest.raises(ChatTemplateFailed):
        Tokenizer(hf_tokenizer).render_chat(messages)


def test_half_of_a_surrogate_pair_is_no_prompt() -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        BYTES.encode("half \ud83d")
