"""Refuses JSON with more arrays, objects and fields than any request needs, before it is parsed.

An empty list is two bytes as JSON and a hundred in Python, and the garbage collector visits each of them
again and again: 4 MiB of brackets take 210 MiB and 3 s of CPU.
"""

import re
from typing import Final

ENTRIES_MAX: Final = 150_000  # a message of a conversation has about four
TOO_MANY: Final = f"more than {ENTRIES_MAX} arrays, objects and fields"

# Strings, and what is no beginning of one of these. Without a limit it would keep each of its steps.
_OTHERS: Final = re.compile(rb'(?:[^"\[{:]+|"[^"]*+"){0,500}')


def has_too_many_entries(data: bytes) -> bool:
    """Counts entries outside strings; in data that are no JSON, those before the error."""
    if sum(map(data.count, (b"[", b"{", b":"))) <= ENTRIES_MAX:
        return False
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # a quote that is left begins or ends a string
    place = entries = 0
    while place < len(data) and entries <= ENTRIES_MAX:
        passed = _OTHERS.match(data, place)
        assert passed is not None, "it may be empty"
        is_entry = data[passed.end() : passed.end() + 1] in (b"[", b"{", b":")
        if passed.end() == place and not is_entry:
            break  # a string that does not end
        entries += is_entry
        place = passed.end() + is_entry
    return entries > ENTRIES_MAX
