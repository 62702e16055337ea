"""The process that reads a Delta table's log: `python -m nightshift.bulk.rows.tables.delta_process FOLDER`.

The folder has a copy of the log and nothing else. A log is data of a tenant: it is read within limits of
memory and CPU time and without credentials, and no file that it names is opened here. JSON on standard output
says the version, and each file with its partition's values; or why its rows cannot be read.
"""

import json
import resource
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
CPU_S: Final = 30
FILES_MAX: Final = 100_000
NAMES_BYTES_MAX: Final = 64 * 1024 * 1024
FEATURES: Final = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck"})
"""Features of a table that change nothing about its files: deletion vectors themselves are refused."""
MAPPING: Final = "delta.columnMapping.mode"


class Refused(Exception):
    """The files alone do not say the table's rows."""


def main() -> None:
    for kind, value in ((resource.RLIMIT_DATA, MEMORY_BYTES_MAX), (resource.RLIMIT_CPU, CPU_S)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    sys.stdout.write(json.dumps(described(Path(sys.argv[1]))))


def described(folder: Path) -> dict[str, Any]:
    """The table's version and files, or why it is refused."""
    try:
        return _described(folder)
    except Refused as refused:
        return {"refused": str(refused)}
    except Exception as error:  # noqa: BLE001 the library raises whatever damage leads to
        return {"refused": f"Its log cannot be read: {' '.join(str(error).split())[:300]}"}


def _described(folder: Path) -> dict[str, Any]:
    import pyarrow as pa
    from deltalake import DeltaTable

    _refuse_deletion_vectors(folder / "_delta_log")
    table = DeltaTable(str(folder))
    if more := set(table.protocol().reader_features or ()) - FEATURES:
        raise Refused(f"It has the feature {min(more)!r}, which its files alone do not say.")
    if table.metadata().configuration.get(MAPPING, "none") != "none":
        raise Refused("Its columns have other names in its files (column mapping).")
    names = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions()).select(["path", *(["partition"] if names else [])])
    if actions.num_rows > FILES_MAX or actions.nbytes > NAMES_BYTES_MAX:
        raise Refused(f"It has {actions.num_rows} files, and at most {FILES_MAX} are read: compact it.")
    files = [
        {"path": row["path"], "partition": {name: _text(name, row["partition"][name]) for name in names}}
        for row in actions.to_pylist()
    ]
    return {"version": table.version(), "files": files}


def _refuse_deletion_vectors(log: Path) -> None:
    """Raises Refused where rows of a file are deleted without it: the library lists such a file as others."""
    import pyarrow.parquet as pq

    for path in sorted(log.iterdir()):
        if path.suffix == ".json":
            with path.open("rb") as lines:
                actions = (json.loads(line).get("add") for line in lines if line.strip())
                has_some = any(action and action.get("deletionVector") for action in actions)
        else:
            column = "add.deletionVector.storageType"
            file = pq.ParquetFile(path)
            leaves = [file.schema.column(number).path for number in range(len(file.schema))]
            vectors = file.read(columns=[column]).flatten().flatten() if column in leaves else None
            has_some = vectors is not None and vectors.column(column).null_count < vectors.num_rows
        if has_some:
            raise Refused("Rows of it are deleted in its log alone (deletion vectors): purge them.")


def _text(name: str, value: object) -> str | None:
    """A partition's value as folders name it. Raises Refused."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, str | int):
        return None if value is None else str(value)
    raise Refused(f"Its partition column '{name}' has neither texts, whole numbers, booleans nor dates.")


if __name__ == "__main__":
    main()
