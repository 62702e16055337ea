"""Names of the files that a job writes to its output. Writers take them from here, and so do readers.

part-00000-4k3j2h1g.parquet    good rows of the shards from 0 on; the rest is the run's own name
errors-00000-4k3j2h1g.parquet  the others, with the same columns
_manifest.json  _manifest-4k3j2h1g.json  _inputs-4k3j2h1g.ndjson  _SUCCESS

What has no rows begins with `_`, because readers of data skip such names. No part has its ending: a pattern
for parts, such as `*.jsonl`, does not stand for it.
"""

import re
from typing import Final

MANIFEST_NAME: Final = "_manifest.json"
SUCCESS_NAME: Final = "_SUCCESS"  # written last
RUN_CHARS: Final = 8

OLD_MANIFEST_NAME: Final = "manifest.json"  # of the release before: read, not written
MANIFEST_NAMES: Final = (MANIFEST_NAME, OLD_MANIFEST_NAME)  # the first that lies there counts

FILE_PREFIXES: Final = ("part-", "errors-")
RUN_MANIFEST_PREFIX: Final = "_manifest-"
PREFIXES: Final = (*FILE_PREFIXES, RUN_MANIFEST_PREFIX, "_inputs-")  # of names that have a run

# Before runs had names of their own, a part was called `part-00000.jsonl`.
_FILE: Final = re.compile(r"(part|errors)-[0-9]{5,}(-(?P<run>[a-z0-9]{8}))?\.(jsonl|parquet)")
_OF_A_RUN: Final = re.compile(r"_(manifest|inputs)-(?P<run>[a-z0-9]{8})\.(json|ndjson)")


def run_of(job_id: str) -> str:
    """A run's name in those of its files."""
    return job_id.rpartition("_")[2][:RUN_CHARS]


def part_name(first_shard: int, job_id: str, format: str) -> str:
    return f"part-{first_shard:05d}-{run_of(job_id)}.{format}"


def errors_name(first_shard: int, job_id: str, format: str) -> str:
    return f"errors-{first_shard:05d}-{run_of(job_id)}.{format}"


def run_manifest_name(job_id: str) -> str:
    """The manifest of a run whose folder still has the complete output of another."""
    return f"_manifest-{run_of(job_id)}.json"


def inputs_name(job_id: str) -> str:
    """The list of a run's inputs, where the manifest has no room for it."""
    return f"_inputs-{run_of(job_id)}.ndjson"


def is_output_name(name: str) -> bool:
    """Whether an output may have an object of this name."""
    is_fixed = name in (*MANIFEST_NAMES, SUCCESS_NAME)
    return is_fixed or _FILE.fullmatch(name) is not None or _OF_A_RUN.fullmatch(name) is not None


def run_in(name: str) -> str | None:
    """The run that a name of ours has. None: it has none."""
    found = _FILE.fullmatch(name) or _OF_A_RUN.fullmatch(name)
    return None if found is None else found["run"]


def is_of_another_run(name: str, job_id: str) -> bool:
    """Whether its name is one of another run's output."""
    found = _FILE.fullmatch(name) or _OF_A_RUN.fullmatch(name)
    return found is not None and found["run"] != run_of(job_id)
