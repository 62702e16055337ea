"""The manifest beside a job's part files."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from nightshift.jobs import Counts, Usage

MANIFEST_NAME: Final = "manifest.json"
SUCCESS_NAME: Final = "_SUCCESS"  # written last
_PART: Final = re.compile(r"part-[0-9]{5,}\.(jsonl|parquet)")


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    rows: int
    succeeded: int
    failed: int
    size_bytes: int
    sha256: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parts of a job's output."""

    job_id: str
    status: str
    format: str
    model: str | None
    created_at: str  # ISO 8601, of the job
    counts: Counts
    usage: Usage
    parts: Sequence[Part]

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n").encode()


def is_output_name(name: str) -> bool:
    """Whether an output may have an object of this name."""
    return name in (MANIFEST_NAME, SUCCESS_NAME) or _PART.fullmatch(name) is not None


def part_name(shard_no: int, format: str) -> str:
    return f"part-{shard_no:05d}.{format}"
