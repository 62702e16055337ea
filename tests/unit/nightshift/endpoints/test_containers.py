"""Arrays, objects and fields are counted outside of strings."""

import pytest

from nightshift.endpoints.containers import ENTRIES_MAX, has_too_many_entries


@pytest.mark.parametrize(
    "data",
    [
        b"[" * ENTRIES_MAX,
        b'["' + b"[{:" * ENTRIES_MAX + b'"]',
        b'["' + b'\\"[' * 2 * ENTRIES_MAX + b'"]',
        b'["\\\\", "' + b"[" * 2 * ENTRIES_MAX + b'"]',
        b'["' + b"[" * 2 * ENTRIES_MAX,
    ],
    ids=["the limit", "text", "escaped quotes", "after an escaped backslash", "a string without an end"],
)
def test_what_may_be_parsed(data):
    assert not has_too_many_entries(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * (ENTRIES_MAX + 1),
        b'{"a": [' + b",".join([b"{}"] * ENTRIES_MAX) + b"]}",
        b'{"":0' + b',"":0' * ENTRIES_MAX + b"}",
        b'["\\\\", ' + b'"[", []' * ENTRIES_MAX,
    ],
    ids=["arrays", "objects", "fields", "between strings"],
)
def test_what_is_too_much(data):
    assert has_too_many_entries(data)
