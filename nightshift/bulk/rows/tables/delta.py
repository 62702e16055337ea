"""Delta tables: the files of a version of one, by its log.

The log is copied by our own object store, which only reads places of the tenant, and the library `deltalake`
reads the copy in a process of its own (`delta_process.py`). The files are objects like others then.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from nightshift.bulk.rows.columns.decoder import ONE_THREAD, VARIABLES
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.bulk.rows.requests import partition_columns
from nightshift.errors import InvalidRequest, StorageUnavailable
from nightshift.objectstore import MIB, ObjectReader, ObjectUri
from nightshift.objectstore.listings import DELTA_LOG

LOG_BYTES_MAX: Final = 256 * MIB
WALL_S: Final = 60.0
COMMAND: Final = (sys.executable, "-P", "-m", "nightshift.bulk.rows.tables.delta_process")
LIBRARY: Final = "deltalake"

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10}))?\.parquet")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class DeltaTable:
    """A version of a table, and the objects that have its rows, in the order of their names."""

    version: int
    uris: Sequence[str]


def delta_table(reader: ObjectReader, location: ObjectUri, version: int | None) -> DeltaTable:
    """The table at a folder, as it was at a version; None: as it is.

    Raises UnreadableInput for one whose files alone do not say its rows, InvalidRequest without the library,
    and StorageError.
    """
    if importlib.util.find_spec(LIBRARY) is None:
        raise InvalidRequest(
            f"This service does not read Delta tables: its scheduler and API lack {LIBRARY}, which comes "
            "with the extra `delta` (pip install 'nightshift[delta]').",
            code="unsupported_input",
        )
    try:
        with tempfile.TemporaryDirectory(prefix="nightshift-delta-") as folder:
            taken = _copied_log(reader, location, version, Path(folder))
            answer = _answer(folder)
        if "refused" in answer:
            raise UnreadableInput(answer["refused"])
        if answer["version"] != taken:
            raise UnreadableInput(f"Its log has version {answer['version']} where {taken} was read.")
        return DeltaTable(taken, _uris(location, answer["files"]))
    except UnreadableInput as error:
        raise UnreadableInput(f"{location} cannot be read as a Delta table: {error.message}") from error


def log_names(names: Sequence[str], version: int | None) -> tuple[Sequence[str], int]:
    """The names in a log that say the table at a version, or its last one, and that version. Pure.

    These are the latest checkpoint that is complete, and the commits behind it. Raises UnreadableInput.
    """
    commits = {int(match[1]): match[0] for name in names if (match := _COMMIT.fullmatch(name))}
    parts: dict[int, list[re.Match[str]]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        parts.setdefault(int(match[1]), []).append(match)
    complete = {at for at, matches in parts.items() if len(matches) >= int(matches[0][2] or 1)}
    wanted = max({*commits, *complete}, default=None) if version is None else version
    if wanted is None:
        raise UnreadableInput(f"It has no log in {DELTA_LOG}.")
    checkpoint = max((at for at in complete if at <= wanted), default=-1)
    missing = next((at for at in range(checkpoint + 1, wanted + 1) if at not in commits), None)
    if missing is not None:
        raise UnreadableInput(f"Its log says its version {wanted} no more: commit {missing} is not there.")
    behind = [commits[at] for at in range(max(0, checkpoint), wanted + 1) if at in commits]
    return [*(match[0] for match in parts.get(checkpoint, ())), *behind], wanted


def _copied_log(reader: ObjectReader, location: ObjectUri, version: int | None, folder: Path) -> int:
    """Copies what is needed of the log. Returns the version."""
    place = f"{location.key}{DELTA_LOG}"
    names = [info.key.removeprefix(place) for info in reader.list(place)]
    wanted, taken = log_names(names, version)
    (folder / DELTA_LOG).mkdir()
    left = LOG_BYTES_MAX
    for name in wanted:
        with (folder / DELTA_LOG / name).open("wb") as copy:
            for piece in reader.stream(f"{place}{name}"):
                left -= copy.write(piece)
                if left < 0:
                    raise UnreadableInput(
                        f"Its log has more than {LOG_BYTES_MAX} bytes: write a checkpoint, or compact it."
                    )
    return taken


def _answer(folder: str) -> Mapping[str, Any]:
    kept = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    try:
        ended = subprocess.run(
            [*COMMAND, folder], env=kept | ONE_THREAD, capture_output=True, timeout=WALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableInput(f"Reading its log takes more than {WALL_S:g} s.") from error
    except OSError as error:
        raise StorageUnavailable(f"The process that reads Delta tables cannot start: {error}") from error
    if ended.returncode:
        raise UnreadableInput("Reading its log takes too much memory or CPU time, or it is damaged.")
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def _uris(location: ObjectUri, files: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    for file in files:
        _check_file(file["path"], file["partition"])
    return sorted(str(location.with_key(f"{location.key}{unquote(file['path'])}")) for file in files)


def _check_file(path: str, partition: Mapping[str, str | None]) -> None:
    """Raises UnreadableInput for a file out of the table's folder, or whose folders do not name its values of
    partition columns, which are in no file.
    """
    name = unquote(path)
    if _ABSOLUTE.match(path) or {".", ".."} & set(name.split("/")):
        raise UnreadableInput(f"Its log names {path[:200]!r}, which does not lie in its folder.")
    if any(letter in name for letter in "*?\0") or name.endswith("/"):
        raise UnreadableInput(f"Its log names {path[:200]!r}, which is no name of a file.")
    if dict(partition_columns(f"s3://table/{name}")) != partition:
        raise UnreadableInput(
            f"The folders of {path[:200]!r} do not name its values of partition columns, as in "
            "date=2026-11-20/."
        )
