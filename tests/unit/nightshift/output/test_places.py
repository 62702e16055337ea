"""What files of an output are called, and whose they are."""

from pathlib import Path

import pytest

from nightshift.objectstore import ObjectUri
from nightshift.output.places import (
    errors_name,
    is_of_another_run,
    is_output_name,
    part_name,
    place_of,
    without_links,
)
from nightshift.testing import a_spec

JOB = "job_4k3j2h1gabcdefghijklmnop"
OTHER = "job_zzzzzzzzabcdefghijklmnop"


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
        ("manifest-zzzzzzzz.json", True, True),
        ("inputs-zzzzzzzz.jsonl", True, True),
        ("manifest-4k3j2h1g.json", True, False),
        ("manifest.json", True, False),
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


def test_one_folder_is_one_place_however_it_is_spelled() -> None:
    same = ["s3://bkt/out", "s3://bkt/out/"]
    other = ["s3://bkt/out/x", "s3://cbk/out", "file:///bkt/out", "s3://bkt/ou"]

    places = {place_of(a_spec(output=text)) for text in same}
    assert len(places) == 1
    assert not places & {place_of(a_spec(output=text)) for text in other}
    assert place_of(a_spec(output="file:///a%20b/")) == place_of(a_spec(output="file:///a b"))
    assert place_of(a_spec(output=None)) is None


def test_a_link_is_the_folder_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    places = {place_of(a_spec(output=f"{tmp_path.as_uri()}/{name}/new")) for name in ("real", "link")}
    assert len(places) == 1
    pattern = ObjectUri.parse(f"{tmp_path.as_uri()}/link/part-*.jsonl")
    assert str(without_links(pattern)) == f"{(tmp_path / 'real').resolve().as_uri()}/part-*.jsonl"
    folder = ObjectUri.parse(f"{tmp_path.as_uri()}/link/")
    assert str(without_links(folder)) == f"{(tmp_path / 'real').resolve().as_uri()}/"
    assert without_links(ObjectUri.parse("s3://bkt/link/")) == ObjectUri.parse("s3://bkt/link/")
