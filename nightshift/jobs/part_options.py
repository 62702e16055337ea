"""How a native job's output is written."""

from dataclasses import dataclass
from typing import Any, Final, Literal

PART_BYTES: Final = 256 * 1024 * 1024
PART_BYTES_MIN: Final = 1024 * 1024
PART_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
KEEP_ALL: Final = "all"  # the columns of the row, whatever they are
KEPT_COLUMNS_MAX: Final = 1000
KEPT_NAMES_CHARS_MAX: Final = 32_768  # of all names: every row has them once more

KeepColumns = tuple[str, ...] | Literal["all"]


@dataclass(frozen=True)
class PartOptions:
    part_bytes: int = PART_BYTES  # of results as stored; then a part ends with its shard
    part_rows: int | None = None  # likewise
    keep_body: bool = False  # in Parquet: the whole answer as JSON
    embedding_dtype: str = "float32"  # in Parquet: or float16
    keep_columns: KeepColumns | None = None  # of the input, beside each answer

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PartOptions":
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        if isinstance(known.get("keep_columns"), list):
            known["keep_columns"] = tuple(known["keep_columns"])
        return cls(**known)
