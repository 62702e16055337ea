"""The names of an output's files, and the run that owns them."""

import pytest

from nightshift.jobs.part import errors_name, is_of_another_run, is_output_name, part_name

JOB = "job_4k3j2h1gabcdefghijklmnop"


def test_names_have_the_first_shard_and_the_run() -> None:
    assert part_name(7, JOB, "parquet") == "part-00007-4k3j2h1g.parquet"
    assert errors_name(123_456, JOB, "jsonl") == "errors-123456-4k3j2h1g.jsonl"


@pytest.mark.parametrize(
    ("name", "is_ours", "is_replaced"),
    [
        ("part-00000-4k3j2h1g.jsonl", True, False),
        ("part-00000-zzzzzzzz.jsonl", True, True),
        ("part-00000.jsonl", True, True),  # of an earlier release
        ("errors-00001-zzzzzzzz.parquet", True, True),
        ("_manifest-zzzzzzzz.json", True, True),
        ("_inputs-zzzzzzzz.ndjson", True, True),
        ("_manifest-4k3j2h1g.json", True, False),
        ("manifest-20261127.json", False, False),
        ("inputs-20261127.jsonl", False, False),
        ("manifest.json", False, False),
        ("_manifest.json", True, False),
        ("_SUCCESS", True, False),
        ("part-1.jsonl", False, False),
        ("part-00000-Mine.jsonl", False, False),
        ("part-00000-zzzzzzzz.csv", False, False),
        ("notes.json", False, False),
        ("part-00000-zzzzzzzz.jsonl/x", False, False),
    ],
)
def test_files_of_other_runs_are_known_by_their_names(name: str, is_ours: bool, is_replaced: bool) -> None:
    assert is_output_name(name) is is_ours
    assert is_of_another_run(name, JOB) is is_replaced
