"""Segments give back what was put in, and are whole or refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.bulk.results.row_results import RowResult, output_lines
from nightshift.bulk.results.segments import CorruptSegment, decode_segment, encode_segment
from nightshift.endpoints.encoders.embeddings import Embeddings
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.generation import Choice
from nightshift.jobs import Usage
from tests.unit.nightshift.bulk.results.shards import CHAT as HEAD
from tests.unit.nightshift.bulk.results.shards import EMBEDDINGS, embedded, said

texts = st.text(st.characters(), max_size=20)  # lone surrogates included: JSON can say them
usages = st.builds(
    Usage, st.integers(0, 2**40), st.integers(0, 9), st.integers(0, 9), st.sampled_from([0, 0, 3])
)
bodies = st.dictionaries(texts, texts | st.integers() | st.lists(texts, max_size=3), max_size=3)
answers = st.builds(
    Choice, texts, st.sampled_from(["stop", "length"]), reasoning=st.sampled_from(["", "hm"])
).map(Chat().values_of)
results = st.builds(
    lambda row, custom_id, status_code, usage, values, body, kept: RowResult.from_result(
        HEAD, row, custom_id, Result(status_code, usage, values or dict.fromkeys(Chat().columns), body), kept
    ),
    row=st.integers(0, 2**31 - 1),
    custom_id=texts,
    status_code=st.sampled_from([200, 400, 500]),
    usage=usages,
    values=st.none() | answers,
    body=bodies,
    kept=st.none() | bodies.map(json.dumps),
)
results_of_values = st.builds(replace, results, status_code=st.just(200), values=answers, body_text=st.none())
some = st.lists(results | results_of_values, max_size=5)


@settings(max_examples=50)
@given(some)
def test_a_segment_gives_back_what_was_put_in(rows: list[RowResult]) -> None:
    assert decode_segment(encode_segment(HEAD, rows).data) == rows


@settings(max_examples=50)
@given(some)
def test_a_measured_segment_has_the_bodies_and_the_length_of_the_lines(rows: list[RowResult]) -> None:
    encoded = encode_segment(HEAD, rows, is_measured=True)
    stored = decode_segment(encoded.data)

    assert all(result.body_text is not None for result in stored)
    assert encoded.output_bytes == sum(map(len, output_lines(rows)))
    assert [*output_lines(stored)] == [*output_lines(rows)]


@settings(max_examples=50)
@given(rows=some, data=st.data())
def test_a_truncated_segment_is_refused(rows: list[RowResult], data: st.DataObject) -> None:
    segment = encode_segment(HEAD, rows).data
    length = data.draw(st.integers(0, len(segment) - 2))  # without its last newline nothing is missing

    with pytest.raises(CorruptSegment):
        decode_segment(segment[:length])


@settings(max_examples=50)
@given(rows=some, data=st.data())
def test_a_segment_with_a_changed_byte_never_gives_other_results(
    rows: list[RowResult], data: st.DataObject
) -> None:
    segment = bytearray(encode_segment(HEAD, rows).data)
    segment[data.draw(st.integers(0, len(segment) - 1))] ^= data.draw(st.integers(1, 255))

    try:
        decoded = decode_segment(bytes(segment))
    except CorruptSegment:
        return
    assert decoded == rows  # the byte was of no account: a newline


def test_two_segments_in_one_object_are_refused() -> None:
    one, other = (encode_segment(HEAD, [said(row)]).data for row in (0, 1))

    with pytest.raises(CorruptSegment):
        decode_segment(one + other)


def test_an_answer_of_values_has_the_body_that_the_endpoint_would_have_written() -> None:
    (stored,) = decode_segment(encode_segment(HEAD, [said(3)]).data)

    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hello", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert stored.body == {
        "id": HEAD.identity(3).id("chatcmpl-"),
        "object": "chat.completion",
        "created": HEAD.created_s,
        "model": HEAD.model,
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "service_tier": "default",
        "system_fingerprint": None,
    }


def test_a_vector_takes_its_own_size_and_little_more() -> None:
    vectors = [bytes([number % 256]) * 1536 for number in range(256)]
    rows = [embedded(number, {"embedding": vector}) for number, vector in enumerate(vectors)]

    segment = encode_segment(EMBEDDINGS, rows).data

    assert len(segment) / 256 < 1_800
    assert [result.values["embedding"] for result in decode_segment(segment)] == vectors


def test_a_vector_of_one_input_is_written_as_a_float_only_where_json_is_read() -> None:
    request = Embeddings().parse({"model": "demo", "input": "a", "encoding_format": "float"})
    coded = Embeddings().parse({"model": "demo", "input": "a", "encoding_format": "base64"})
    vector = b"\x00\x00\x80\x3f\x00\x00\x00\xbf"

    plain, encoded = (Embeddings().result(form, [vector], 2) for form in (request, coded))

    assert (plain.values, plain.body) == ({"embedding": vector, "truncated_inputs": None}, None)
    assert encoded.values == plain.values
    assert encoded.body is not None
    assert encoded.body["data"][0]["embedding"] == "AACAPwAAAL8="
    row = RowResult.from_result(EMBEDDINGS, 0, "a", plain)
    assert row.body == Embeddings().answer(request, [vector], 2)
    assert row.body["data"][0]["embedding"] == [1.0, -0.5]
