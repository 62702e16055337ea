"""Which spellings of an output name one folder."""

from pathlib import Path

from nightshift.bulk.results.destinations import place_of, without_links
from nightshift.objectstore import ObjectUri
from tests.helpers.fakes import a_spec


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
