"""JSON as it is stored, and its size."""

import json
from typing import Final

from nightshift.jobs import json_pieces

_UNICODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def json_bytes(value: object) -> int:
    """The bytes of a value as JSON, in ASCII."""
    return len(json.dumps(value))


def json_text(value: object) -> str:
    """Compact JSON that can be written as UTF-8: in ASCII where half a surrogate pair keeps it from that."""
    text = json_pieces.dumps(value, _UNICODE.encode)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json_pieces.dumps(value)
    return text
