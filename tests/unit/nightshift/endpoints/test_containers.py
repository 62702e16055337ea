"""Arrays, objects and fields are counted outside of strings."""

import pytest

from nightshift.endpoints.containers import ENTRIES_MAX, has_too_many_entries


@pytest.mark.parametrize(
    ("data", "is_too_much"),
    [
        pytest.param(b"[" * ENTRIES_MAX, False, id="the limit"),
        pytest.param(b'["' + b"[{:" * ENTRIES_MAX + b'"]', False, id="text"),
        pytest.param(b'["' + b'\\"[' * 2 * ENTRIES_MAX + b'"]', False, id="escaped quotes"),
        pytest.param(b'["\\\\", "' + b"[" * 2 * ENTRIES_MAX + b'"]', False, id="after an escaped backslash"),
        pytest.param(b'["' + b"[" * 2 * ENTRIES_MAX, False, id="a string without an end"),
        pytest.param(b"[" * (ENTRIES_MAX + 1), True, id="arrays"),
        pytest.param(b'{"a": [' + b",".join([b"{}"] * ENTRIES_MAX) + b"]}", True, id="objects"),
        pytest.param(b'{"":0' + b',"":0' * ENTRIES_MAX + b"}", True, id="fields"),
        pytest.param(b'["\\\\", ' + b'"[", []' * ENTRIES_MAX, True, id="between strings"),
    ],
)
def test_arrays_objects_and_fields_are_counted(data, is_too_much):
    assert has_too_many_entries(data) is is_too_much
