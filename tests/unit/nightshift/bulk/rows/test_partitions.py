"""Columns that the folders of an object name."""

import pytest

from nightshift.bulk.rows.requests import partition_columns


@pytest.mark.parametrize(
    ("uri", "columns"),
    [
        ("s3://b/in/date=2026-11-20/lang=en/part-0.parquet", {"date": "2026-11-20", "lang": "en"}),
        ("s3://b/date=2026-11-20/a.csv", {"date": "2026-11-20"}),
        ("file:///srv/in/lang=de/a.jsonl", {"lang": "de"}),
        ("s3://b/city=S%C3%A3o%20Paulo%2FSP/a.csv", {"city": "São Paulo/SP"}),
        ("file:///srv/city=S%25C3%25A3o/a.csv", {"city": "São"}),
        ("s3://b/lang=__HIVE_DEFAULT_PARTITION__/empty=/a.csv", {"lang": None, "empty": ""}),
        ("s3://b/a=b=c/a.csv", {"a": "b=c"}),
        ("s3://b/x=1/x=2/a.csv", {"x": "2"}),
        ("s3://b/=1/plain/file=name.csv", {}),
        ("s3://b=1/a.csv", {}),
        ("file-abc", {}),
    ],
)
def test_folders_name_columns(uri: str, columns: dict[str, str | None]) -> None:
    assert partition_columns(uri) == columns
