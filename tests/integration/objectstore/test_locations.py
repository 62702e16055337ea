"""Where inputs and outputs may lie: what a location stands for, and which the operator allows."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nightshift.errors import InvalidRequest, LocationNotAllowed, ObjectNotFound
from nightshift.objectstore import DirectoryStore, Locations, ObjectStore, ObjectUri
from nightshift.objectstore.s3 import S3Store
from nightshift.tenants.keys import DEFAULT_TENANT as TENANT
from tests.helpers.fakes import expanded
from tests.integration.objectstore.conftest import more
from tests.integration.servers import S3Server

# What `push_to_hub` and `save_to_disk` of the library `datasets` leave in a folder. Those that `map` keeps
# beside them have the same rows once more.
HUB_LAYOUT = (
    ".gitattributes",
    "LICENSE",
    "README.md",
    "data/test-00000-of-00001.parquet",
    "data/train-00000-of-00001.parquet",
    "dataset_infos.json",
)
DISK_LAYOUT = (
    "dict/dataset_dict.json",
    "dict/train/cache-0123456789abcdef.arrow",
    "dict/train/cache-0123456789abcdef_00000_of_00002.arrow",
    "dict/train/data-00000-of-00001.arrow",
    "dict/train/dataset_info.json",
    "dict/train/state.json",
    "dict/train/state.jsonl",
)


@pytest.fixture(params=["directory", "moto", more("rclone")], scope="module")
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Locations]]:
    """A URL prefix with some objects beneath it, and the locations that allow it. Only to be read."""
    store: ObjectStore
    if request.param == "directory":
        root = tmp_path_factory.mktemp("place")
        store, locations = DirectoryStore(root), Locations(file_roots=(root,))
    else:
        server: S3Server = request.getfixturevalue(f"{request.param}_server")
        bucket = server.new_bucket()
        store, locations = S3Store(server.client, bucket), Locations(s3_buckets=(bucket,))
        with server.in_environment():
            locations.open(ObjectUri.parse(store.url), TENANT)
    for name in ("b.jsonl", "a.jsonl", "c.csv", "deep/d.jsonl", "_tmp/e.jsonl", "_SUCCESS", "manifest.json"):
        store.put(f"in/{name}", b"{}\n")
    for name in HUB_LAYOUT + DISK_LAYOUT:
        store.put(f"sets/{name}", b"{}\n")
    with closing(locations):
        yield store.url, locations


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("in/a.jsonl", ["in/a.jsonl"]),
        ("in/*.jsonl", ["in/a.jsonl", "in/b.jsonl"]),
        ("in/?.csv", ["in/c.csv"]),
        ("in/*/*.jsonl", ["in/_tmp/e.jsonl", "in/deep/d.jsonl"]),
        ("in/", ["in/a.jsonl", "in/b.jsonl", "in/c.csv", "in/deep/d.jsonl", "in/manifest.json"]),
        ("i?/", ["in/a.jsonl", "in/b.jsonl", "in/c.csv", "in/deep/d.jsonl", "in/manifest.json"]),
        ("in/man*.json", ["in/manifest.json"]),
        (
            "sets/",
            [
                "sets/data/test-00000-of-00001.parquet",
                "sets/data/train-00000-of-00001.parquet",
                "sets/dict/train/data-00000-of-00001.arrow",
                "sets/dict/train/state.jsonl",
            ],
        ),
        ("sets/dict/train/state.json", ["sets/dict/train/state.json"]),
    ],
)
def test_a_location_stands_for_an_object_a_pattern_or_a_prefix(
    place: tuple[str, Locations], pattern: str, expected: list[str]
) -> None:
    url, locations = place
    uri = ObjectUri.parse(f"{url}/{pattern}")

    objects = expanded(locations, uri, TENANT)

    base = ObjectUri.parse(f"{url}/").key
    assert [info.key.removeprefix(base) for info in objects] == expected
    assert locations.open(uri, TENANT).read(objects[0].key) == b"{}\n"
    assert str(uri.with_key(objects[0].key)) == f"{url}/{expected[0]}"


@pytest.mark.parametrize("pattern", ["none.jsonl", "in/*.parquet", "nowhere/"])
def test_a_location_with_nothing_there_is_an_error(place: tuple[str, Locations], pattern: str) -> None:
    url, locations = place
    with pytest.raises(ObjectNotFound):
        expanded(locations, ObjectUri.parse(f"{url}/{pattern}"), TENANT)


def test_an_object_that_is_listed_twice_is_read_once(
    place: tuple[str, Locations], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stores do, when a listing goes on to another page while another client writes."""
    url, locations = place
    uri = ObjectUri.parse(f"{url}/in/")
    objects = expanded(locations, uri, TENANT)
    store = type(locations.open(uri, TENANT))
    listed = store.list
    monkeypatch.setattr(store, "list", lambda self, *where: [*listed(self, *where), *listed(self, *where)])

    assert expanded(locations, uri, TENANT) == objects


def test_a_listing_goes_on_behind_any_key(place: tuple[str, Locations]) -> None:
    url, locations = place
    uri = ObjectUri.parse(f"{url}/in/*")
    objects = [listed_object.info.key for listed_object in locations.listed(uri, TENANT)]
    assert len(objects) > len(expanded(locations, uri, TENANT)) > 2

    for place_in_list, key in enumerate(objects):
        rest = locations.listed(uri, TENANT, after=key, matched=1)
        assert [listed_object.info.key for listed_object in rest] == objects[place_in_list + 1 :]


def test_an_object_that_is_named_is_not_listed_again_behind_itself(place: tuple[str, Locations]) -> None:
    url, locations = place
    uri = ObjectUri.parse(f"{url}/in/a.jsonl")
    (named,) = locations.listed(uri, TENANT)
    assert list(locations.listed(uri, TENANT, after=named.info.key, matched=1)) == []


def test_a_store_that_lists_in_another_order_is_refused_and_nothing_left_out(
    place: tuple[str, Locations], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, locations = place
    uri = ObjectUri.parse(f"{url}/in/")
    store = type(locations.open(uri, TENANT))
    listed = store.list
    monkeypatch.setattr(store, "list", lambda self, *where: reversed(list(listed(self, *where))))

    with pytest.raises(InvalidRequest, match="behind a key that sorts after it") as error:
        list(locations.listed(uri, TENANT))
    assert error.value.code == "unordered_listing"


def test_a_location_that_stands_for_too_many_objects_is_refused(
    place: tuple[str, Locations], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, locations = place
    monkeypatch.setattr("nightshift.objectstore.locations.OBJECTS_MAX", 2)
    with pytest.raises(InvalidRequest, match="too many"):
        expanded(locations, ObjectUri.parse(f"{url}/in/"), TENANT)


@pytest.mark.parametrize(
    "text",
    [
        "s3://other/k",
        "file:///etc/passwd",
        "file://{root}/../x",
        "file://{root}/link/x",
        "file://{root}-beside/x",
    ],
)
def test_a_place_the_operator_did_not_allow_is_refused(tmp_path: Path, text: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    locations = Locations(s3_buckets=("mine",), file_roots=(root,))

    with pytest.raises(LocationNotAllowed):
        expanded(locations, ObjectUri.parse(text.format(root=root)), TENANT)


def test_nothing_is_allowed_by_default(tmp_path: Path) -> None:
    for text in ("s3://any/k", tmp_path.as_uri()):
        with pytest.raises(LocationNotAllowed):
            Locations().check(ObjectUri.parse(text), TENANT)


def test_a_root_reached_through_a_link_is_the_root_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.jsonl").write_bytes(b"{}\n")
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    locations = Locations(file_roots=(tmp_path / "alias",))

    for name in ("alias", "real"):
        assert len(expanded(locations, ObjectUri.parse(f"{(tmp_path / name).as_uri()}/*.jsonl"), TENANT)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.jsonl",
        "/abs/path",
        "http://host/x",
        "s3://",
        "s3:///key",
        "file://host/x",
        "file:///a/../b",
        "s3://b/%00\0",
        "file:///srv/%ff.jsonl",
    ],
)
def test_what_is_not_a_location_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        ObjectUri.parse(text)


def test_a_file_uri_may_spell_spaces_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "a b.jsonl").write_bytes(b"{}\n")
    uri = ObjectUri.parse((tmp_path / "a b.jsonl").as_uri())

    assert expanded(Locations(file_roots=(tmp_path,)), uri, TENANT)[0].size_bytes == 3
    assert str(uri) == (tmp_path / "a b.jsonl").as_uri()
