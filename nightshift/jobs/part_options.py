"""How a native job's output is written."""

from dataclasses import dataclass
from typing import Any, Final

PART_BYTES: Final = 256 * 1024 * 1024
PART_BYTES_MIN: Final = 1024 * 1024
PART_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024


@dataclass(frozen=True)
class PartOptions:
    part_bytes: int = PART_BYTES  # of results as stored; then a part ends with its shard
    part_rows: int | None = None  # likewise
    keep_body: bool = False  # in Parquet: the whole answer as JSON
    embedding_dtype: str = "float32"  # in Parquet: or float16

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PartOptions":
        return cls(**{key: value for key, value in data.items() if key in cls.__dataclass_fields__})
