"""The manifest beside a job's part files: replaced as they come, complete once the job has ended."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from nightshift.jobs import Counts, JsonObject, Usage
from nightshift.jobs.part import PartFile


@dataclass(frozen=True)
class ManifestModel:
    id: str | None
    revision: str | None = None  # None: not known
    dtype: str | None = None
    dimensions: int | None = None  # a vector's


@dataclass(frozen=True)
class ManifestInputs:
    """The objects that were read. Many are listed in an object of their own."""

    objects: Sequence[JsonObject] | None = None  # `uri` and `etag`
    listed_in: str | None = None  # the name of that object, which has one on each line
    count: int | None = None  # None: not all of them are known yet


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest: which files lie in a job's output, and what they hold."""

    job_id: str
    status: str
    is_complete: bool  # no part will follow
    format: str
    model: ManifestModel
    created_at: str  # ISO 8601, of the job
    counts: Counts
    usage: Usage
    settings: JsonObject
    inputs: ManifestInputs
    reused_job: str | None  # whose results rows had
    parts: Sequence[PartFile]  # files of good rows
    errors: Sequence[PartFile]  # files of rows without a good result

    def to_json(self) -> bytes:
        said = {
            "job_id": self.job_id,
            "status": self.status,
            "complete": self.is_complete,
            "format": self.format,
            "model": asdict(self.model),
            "created_at": self.created_at,
            "counts": asdict(self.counts),
            "usage": asdict(self.usage),
            "settings": self.settings,
            "inputs": asdict(self.inputs),
            "reused": {"rows": sum(file.reused for file in self.parts), "job_id": self.reused_job},
            "truncated": {"rows": sum(file.truncated for file in self.parts)},
            "unlisted": {"rows": sum(file.unlisted for file in self.errors)},
            "parts": [file.to_json() for file in self.parts],
            "errors": [file.to_json() for file in self.errors],
        }
        return (json.dumps(said, indent=2, ensure_ascii=False) + "\n").encode()
