"""Tokens become text once, whole and in time, and what decoding everything in one go would give."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightshift_engine.text.decoders import FallbackTextDecoder, TextDecoder, TextStream, WindowTextDecoder
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.tokenizers import BPE, BYTES, CORPUS, FALLBACK, KINDS, Kind

any_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def stream_text(stream: TextStream | TextDecoder, ids: Sequence[int]) -> str:
    return "".join(stream.push(id) for id in ids) + stream.finish()


@any_kind
@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_any_tokens_after_any_prompt_stream_to_what_they_decode_to_in_one_go(
    kind: Kind, data: st.DataObject
) -> None:
    """Broken characters, special tokens and ids of no token included, in the prompt as well."""
    tokens = st.integers(0, kind.num_ids - 1) | st.sampled_from(_some_bytes(kind.tokenizer))
    prompt = data.draw(st.lists(tokens, max_size=12))
    ids = data.draw(st.lists(tokens, max_size=30))

    assert stream_text(kind.tokenizer.text_stream(prompt), ids) == kind.text_after(prompt, ids)


def _some_bytes(tokenizer: Tokenizer) -> list[int]:
    """Tokens of which characters and broken ones come about often."""
    ids = tokenizer.encode("😀é")
    return [*ids, *ids[-2:], *tokenizer.encode(" a"), *sorted(tokenizer._silent)]


@any_kind
@settings(max_examples=70, deadline=None)
@given(text=st.text(max_size=30) | st.sampled_from(CORPUS), more=st.text(max_size=30), cut=st.integers(0, 40))
def test_text_cut_into_prompt_and_answer_anywhere_is_the_text(
    kind: Kind, text: str, more: str, cut: int
) -> None:
    ids = kind.tokenizer.encode(text + more)
    prompt, answer = ids[:cut], ids[cut:]

    assert stream_text(kind.tokenizer.text_stream(prompt), answer) == kind.text_after(prompt, answer)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30) | st.sampled_from(CORPUS), use_bpe=st.booleans())
@example(text="👩‍👩‍👧‍👦", use_bpe=False)
def test_streamed_text_is_the_text(text: str, use_bpe: bool) -> None:
    tokenizer = BPE if use_bpe else BYTES
    assert stream_text(tokenizer.text_stream([]), tokenizer.encode(text)) == text


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_prompt_ending_in_half_a_character_keeps_the_next_space(num_bytes: int) -> None:
    emoji, (_, world) = FALLBACK.encode("😁")[-4:], FALLBACK.encode("Hello world")
    prompt = emoji[:num_bytes]

    assert stream_text(FALLBACK.text_stream(prompt), [*emoji[num_bytes:], world]) == " world", "completed"
    assert stream_text(FALLBACK.text_stream(prompt), [world]) == " world", "broken"


def test_special_tokens_at_the_end_of_a_prompt_do_not_hide_what_comes_before_them() -> None:
    (eos,), (hello, world) = FALLBACK._silent, FALLBACK.encode("Hello world")

    assert stream_text(FALLBACK.text_stream([hello, *[eos] * 20]), [world]) == " world"


def test_no_character_appears_before_its_last_byte() -> None:
    stream = BYTES.text_stream([])

    assert [stream.push(id) for id in BYTES.encode("é🌙")] == ["", "é", "", "", "", "🌙"]


@pytest.mark.parametrize(
    "text", ["<0xF0>", "<0x9F>", "<0xF0><0x9F><0x98><0x81>", "<eos>", "▁", "�", "▁Hello"]
)
@pytest.mark.parametrize("makes_halves", [False, True])
def test_the_cost_of_a_token_does_not_grow_with_those_before_it(text: str, makes_halves: bool) -> None:
    """Counted in decoded tokens: broken bytes, silent tokens and U+FFFD without end as well as text."""
    backend = FALLBACK._backend
    ids = [backend.token_to_id(f"{name}>") for name in text.split(">")[:-1]] or [backend.token_to_id(text)]
    decoded: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        decoded.append(len(token_ids))
        return FALLBACK.decode(token_ids)

    decoder: TextDecoder
    if makes_halves:
        decoder = WindowTextDecoder(decode, FALLBACK._is_silent, ends_in_halves=True)
    else:
        decoder = FallbackTextDecoder(decode, FALLBACK._is_silent, FALLBACK._byte_by_token)
    stream_text(decoder, ids * 1_000)

    assert sum(decoded) <= 20 * 1_000 * len(ids)
    assert max(decoded, default=0) <= 20
