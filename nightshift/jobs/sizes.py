"""JSON as it is stored, and its size."""

import json


def json_bytes(value: object) -> int:
    """The bytes of a value as JSON, in ASCII."""
    return len(json.dumps(value))


def json_text(value: object) -> str:
    """Compact JSON that can be written as UTF-8: in ASCII where half a surrogate pair keeps it from that."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
