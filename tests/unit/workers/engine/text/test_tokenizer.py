"""Text appears whole, once and in time, however tokens cut it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.unit.workers.engine.tiny_models import BOS, EOS, byte_tokenizer
from workers.engine import ChatTemplateFailed, InvalidRequest
from workers.engine.text.detokenizer import ByteTextDecoder, StopMatcher, TextStream, WindowTextDecoder
from workers.engine.text.tokenizer import Tokenizer

CORPUS = [
    "Grüße aus der Nacht 🌙✨",
    "naïve café — 你好, 世界!",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "plain words and more words",
]

BYTES = Tokenizer(byte_tokenizer())


def bpe_tokenizer() -> Tokenizer:
    """Byte-level BPE with merges, so that tokens end in the middle of characters and hold several."""
    backend = BackendTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"))


def metaspace_tokenizer() -> Tokenizer:
    """SentencePiece style: a space belongs to the token after it, and the very first one is dropped."""
    words = ["<unk>", "▁Hello", "▁world", "!", "▁", "a", "▁again"] + [
        f"<0x{byte:02X}>" for byte in range(256)
    ]
    vocab: list[tuple[str, float]] = [(word, -1.0) for word in words]
    backend = BackendTokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))


BPE = bpe_tokenizer()
METASPACE = metaspace_tokenizer()


def stream_text(stream: TextStream, ids: list[int]) -> str:
    return "".join(stream.push(id) for id in ids) + stream.finish()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30) | st.sampled_from(CORPUS), use_bpe=st.booleans())
@example(text="👩‍👩‍👧‍👦", use_bpe=False)
def test_streamed_text_is_the_text(text: str, use_bpe: bool) -> None:
    tokenizer = BPE if use_bpe else BYTES
    assert stream_text(tokenizer.text_stream([]), tokenizer.encode(text)) == text


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 257), max_size=40))
def test_any_tokens_stream_to_what_they_decode_to(ids: list[int]) -> None:
    """Random bytes, broken characters and special tokens included."""
    assert stream_text(BYTES.text_stream([]), ids) == BYTES.decode(ids)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 340), max_size=40),
    prompt=st.lists(st.integers(0, 340), max_size=8),
    use_bpe=st.booleans(),
)
def test_joining_bytes_gives_what_decoding_everything_gives(
    ids: list[int], prompt: list[int], use_bpe: bool
) -> None:
    """Against the library's own decoder: broken characters, special tokens and unknown ids included."""
    tokenizer = BPE if use_bpe else BYTES
    whole, of_prompt = tokenizer.decode([*prompt, *ids]), tokenizer.decode(prompt)
    prompt_ends_whole = not of_prompt.endswith("\ufffd")

    text = stream_text(tokenizer.text_stream(prompt), ids)

    assert isinstance(tokenizer.text_stream([])._decoder, ByteTextDecoder)
    if prompt_ends_whole:
        assert of_prompt + text == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.sampled_from(CORPUS), prompt=st.sampled_from(["", "Hello", "Hello é"]))
def test_decoding_a_window_gives_what_decoding_everything_gives(text: str, prompt: str) -> None:
    ids, before = METASPACE.encode("a" + text)[1:], METASPACE.encode(prompt)
    whole = METASPACE.decode([*before, *ids])

    assert isinstance(METASPACE.text_stream([])._decoder, WindowTextDecoder)
    assert METASPACE.decode(before) + stream_text(METASPACE.text_stream(before), ids) == whole


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, METASPACE])
@pytest.mark.parametrize("text", CORPUS)
def test_the_bytes_of_tokens_make_up_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    known = "<unk>" not in [tokenizer._backend.id_to_token(id) for id in ids]

    assert not known or b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip(" ") == text


def test_the_bytes_of_half_a_character_are_half_a_character() -> None:
    assert [BYTES.token_bytes(id) for id in BYTES.encode("é")] == [b"\xc3", b"\xa9"]
    assert [METASPACE.token_bytes(id) for id in METASPACE.encode("é")[1:]] == [b"\xc3", b"\xa9"]
    assert METASPACE.token_bytes(METASPACE.encode("Hello world")[1]) == b" world"


def test_a_special_token_is_spelled_but_leaves_no_text() -> None:
    assert BYTES.token_bytes(EOS) == b"<eos>"
    assert BYTES.is_special(EOS)
    assert not BYTES.is_special(65)
    assert BYTES.token_bytes(5_000) == b""


def test_no_character_appears_before_its_last_byte() -> None:
    stream = BYTES.text_stream([])

    assert [stream.push(id) for id in BYTES.encode("é🌙")] == ["", "é", "", "", "", "🌙"]


def test_half_a_character_at_the_end_is_not_lost() -> None:
    stream = BYTES.text_stream([])
    stream.push(BYTES.encode("é")[0])

    assert stream.finish() == "\ufffd"


def test_special_tokens_leave_no_text() -> None:
    stream = BYTES.text_stream([BOS])

    assert stream_text(stream, [*BYTES.encode("a"), EOS, *BYTES.encode("b")]) == "ab"


def test_a_completion_keeps_the_space_it_begins_with() -> None:
    hello, world = METASPACE.encode("Hello world")
    assert METASPACE.decode([world]) == "world"

    assert stream_text(METASPACE.text_stream([hello]), [world]) == " world"


def test_bytes_spelled_as_tokens_join_into_characters() -> None:
    ids = METASPACE.encode("Hello é🌙!")
    assert len(ids) > 6

    assert stream_text(METASPACE.text_stream([]), ids) == "Hello é🌙!"


def test_a_prompt_cut_within_a_character_does_not_swallow_the_answer() -> None:
    half = BYTES.encode("é")[:1]

    assert stream_text(BYTES.text_stream(half), BYTES.encode("ok")) == "ok"


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


def test_a_stop_string_across_tokens_ends_the_stream_without_showing_itself() -> None:
    stream = BYTES.text_stream([], stop=["🌙"])

    assert stream_text(stream, BYTES.encode("night 🌙 day")) == "night "
    assert stream.is_stopped


def test_chat_messages_become_ids_that_end_where_the_answer_begins() -> None:
    ids = BYTES.render_chat([{"role": "user", "content": "hi"}])

    assert BYTES.decode(ids) == "<user>hi\n<assistant>"


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


@pytest.mark.parametrize("make", [lambda: BYTES, lambda: BPE])
def test_ids_beyond_the_tokenizers_vocabulary_are_silent(make: Callable[[], Tokenizer]) -> None:
    """Models often have more output rows than their tokenizer has tokens."""
    stream = make().text_stream([])

    assert stream_text(stream, [5_000, *make().encode("a"), 5_001]) == "a"
