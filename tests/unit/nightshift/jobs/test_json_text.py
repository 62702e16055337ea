"""JSON in pieces is what the standard library makes of it, and other threads run between the pieces."""

import json
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs import json_text

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40
)


@given(VALUES, st.integers(1, 8), st.sampled_from([(",", ":"), (", ", ": "), (",\n\t", " :\r\n")]))
def test_whatever_is_written_is_read(value: Any, parts: int, separators: tuple[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "PARTS_MAX", parts)
        patch.setattr(json_text, "LARGE_BYTES", 0)

        assert json_text.dumps(value) == json.dumps(value, separators=(",", ":"))
        assert json.loads(json_text.json_text(value).encode()) == value
        assert json_text.loads(json.dumps(value, separators=separators)) == value


def test_text_is_written_as_it_is_unless_utf_8_cannot_hold_it() -> None:
    assert json_text.json_text({"é": "☂"}) == '{"é":"☂"}'
    assert json_text.json_text({"é": "\ud800"}) == '{"\\u00e9":"\\ud800"}'


def test_every_piece_of_a_large_value_is_small() -> None:
    tokens = [
        {"token": "a", "logprob": -1.5, "bytes": [97] * 3, "top_logprobs": [{"token": "b"}] * 20}
    ] * 2000
    answer = {"choices": [{"logprobs": {"content": tokens}}], "data": [list(range(5000))] * 3, "text": "x"}

    pieces = list(json_text.encoded(answer))

    assert "".join(pieces) == json.dumps(answer, separators=(",", ":"))
    assert max(map(len, pieces)) < 8_000


def test_another_thread_runs_again_and_again_while_a_large_value_is_read_and_written() -> None:
    text = json.dumps({"choices": [{"logprobs": {"content": [{"token": "a", "bytes": [97]}] * 60_000}}]})
    turns: list[int] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            turns.append(len(turns))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=count)
    try:
        other.start()
        seen = [len(turns)]
        value = json_text.loads(text)
        seen.append(len(turns))
        for _ in json_text.encoded(value):
            seen.append(len(turns))
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(interval)
    grew = sum(before < after for before, after in pairwise(seen[1:]))
    assert seen[0] < seen[1]
    assert grew > 10
