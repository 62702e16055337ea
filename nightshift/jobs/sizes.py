"""The size of a value in the database."""

import json


def json_bytes(value: object) -> int:
    """The bytes of a value as JSON, as the database stores it: ASCII."""
    return len(json.dumps(value))
