"""Reads and checks the output of a bulk job."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


class WrongOutput(Exception):
    """An output folder that does not hold exactly the rows it should."""


def manifest_of(folder: Path, *, rows: int) -> dict[str, Any]:
    """The manifest of a finished output. Raises WrongOutput unless it counts `rows` good rows alone."""
    if not (folder / "_SUCCESS").exists():
        raise WrongOutput(f"{folder} has no _SUCCESS")
    manifest: dict[str, Any] = json.loads((folder / "_manifest.json").read_text())
    counts = manifest["counts"]
    if not manifest["complete"] or counts["succeeded"] != rows or counts["failed"]:
        raise WrongOutput(f"{folder}/_manifest.json counts {counts} where {rows} rows should have succeeded")
    return manifest


def rows_of(folder: Path, *, rows: int) -> dict[str, dict[str, Any]]:
    """Every row of a finished output by its `custom_id`, JSONL or Parquet, each of them there once.

    Raises WrongOutput if rows are missing, there twice, or without an answer.
    """
    manifest_of(folder, rows=rows)
    rows_by_id: dict[str, dict[str, Any]] = {}
    for part in sorted(folder.glob("part-*")):
        for row in _rows_of_part(part):
            if rows_by_id.setdefault(row["custom_id"], row) is not row:
                raise WrongOutput(f"{row['custom_id']} is in {folder} twice")
            if row["outcome"] != "succeeded":
                raise WrongOutput(f"{row['custom_id']} has ended as {row['outcome']}")
    if len(rows_by_id) != rows:
        raise WrongOutput(f"{folder} has {len(rows_by_id)} rows where {rows} were submitted")
    return rows_by_id


def _rows_of_part(part: Path) -> list[dict[str, Any]]:
    if part.suffix == ".parquet":
        return list(pq.read_table(part).to_pylist())
    return [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines()]
