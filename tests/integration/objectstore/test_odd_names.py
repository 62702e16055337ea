"""Whatever a listing shows under a location is read, or the location is refused by the object's name."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nightshift.errors import InvalidRequest, LocationNotAllowed, ObjectNotFound, StorageDenied, StorageError
from nightshift.objectstore import Locations, ObjectUri, directory_files
from nightshift.objectstore.listings import is_data
from nightshift.objectstore.verdicts import storage_verdict
from nightshift.tenants.keys import DEFAULT_TENANT as TENANT
from tests.helpers.fakes import expanded
from tests.integration.objectstore.s3_faults import ANY, Refused, Rewritten, faulty_s3
from tests.integration.servers import S3Server

ODD_NAMES = [
    "/a.csv",
    "sub//c.csv",
    "sub///c.csv",
    "sub/",
    "data.csv/",
    "a\x01b.csv",
    "tab\t.csv",
    "\x7f.csv",
    "\u2028.csv",
    "e\u0301.csv",
    "\u00e9.csv",
    "\U0001f600.csv",
    "50%.csv",
    "%2Fa.csv",
    "%2e%2e.csv",
    "a b.csv",
    " a.csv",
    "a.csv ",
    "a+b.csv",
    "a#b.csv",
    "a?b.csv",
    "a*b.csv",
    "a\\b.csv",
    "a&b<c>'\".csv",
    "a:b;c=1.csv",
    "p",
    "p/x.csv",
    "file://x.csv",
    "s3://x/y.csv",
    "x" * (1024 - len("in/")),
]


@pytest.fixture
def bucket(moto_server: S3Server) -> str:
    return moto_server.new_bucket()


@pytest.fixture
def locations(moto_server: S3Server, bucket: str) -> Iterator[Locations]:
    """The bucket, and how a tenant reaches it."""
    with closing(Locations(s3_buckets=(bucket,))) as allowed:
        with moto_server.in_environment():
            allowed.open(ObjectUri.parse(f"s3://{bucket}/"), TENANT)
        yield allowed


@pytest.fixture
def put(moto_server: S3Server, bucket: str) -> Callable[..., None]:
    """Writes objects with keys that our own stores may not write."""

    def put(*keys: str, body: bytes | None = None) -> None:
        for key in keys:
            moto_server.client.put_object(Bucket=bucket, Key=key, Body=key.encode() if body is None else body)

    return put


def read(locations: Locations, text: str) -> dict[str, bytes]:
    """The objects of a location, each by its own URI, as shards name them."""
    location = ObjectUri.parse(text)
    bodies: dict[str, bytes] = {}
    for info in expanded(locations, location, TENANT):
        uri = ObjectUri.parse(str(location.with_key(info.key)))
        store = locations.open(uri, TENANT)
        assert store.head(uri.key) == info
        bodies[uri.key] = b"".join(store.stream(uri.key, if_match=info.etag))
    return bodies


@pytest.mark.parametrize("text", ["", "in/"])
def test_every_object_below_a_prefix_is_read_whatever_its_key(
    locations: Locations, bucket: str, put: Callable[..., None], text: str
) -> None:
    keys = [f"in/{name}" for name in ODD_NAMES] + (["/top.csv", "//top.csv"] if not text else [])
    put(*keys)
    put("in/", "in/folder/", "in/_SUCCESS", "in/sub//_hidden/x.csv", "in/.git/config", body=b"")
    put("beside/a.csv")

    bodies = read(locations, f"s3://{bucket}/{text}")

    keys += [] if text else ["beside/a.csv"]
    assert bodies == {key: key.encode() for key in keys}


def test_a_folders_own_object_is_read_if_it_has_bytes(
    locations: Locations, bucket: str, put: Callable[..., None]
) -> None:
    put("in/", "in/a.csv")
    assert set(read(locations, f"s3://{bucket}/in/")) == {"in/", "in/a.csv"}
    put("in/", body=b"")
    assert set(read(locations, f"s3://{bucket}/in/")) == {"in/a.csv"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in/*", ["in//a.csv", "in/b.csv", "in/sub/"]),
        ("in/*.csv", ["in//a.csv", "in/b.csv"]),
        ("in/?.csv", ["in//a.csv", "in/b.csv"]),
        ("in//*.csv", ["in//a.csv"]),
        ("in//", ["in//a.csv"]),
        ("in//a.csv", ["in//a.csv"]),
        ("in/*/*.csv", ["in//a.csv", "in/sub//c.csv", "in/sub/d.csv"]),
        ("in/sub/*", ["in/sub/", "in/sub//c.csv", "in/sub/d.csv"]),
        ("i*/sub/", ["in/sub/", "in/sub//c.csv", "in/sub/d.csv"]),
        ("*.csv", ["//top.csv", "/top.csv", "top.csv"]),
        ("/*.csv", ["//top.csv", "/top.csv"]),
        ("/", ["//top.csv", "/top.csv"]),
        ("/top.csv", ["/top.csv"]),
    ],
)
def test_an_empty_part_counts_for_nothing_in_a_pattern(
    locations: Locations, bucket: str, put: Callable[..., None], text: str, expected: list[str]
) -> None:
    """As in a shell, where `in//a.csv` is `in/a.csv`."""
    put("in/b.csv", "in//a.csv", "in/sub//c.csv", "in/sub/d.csv", "in/sub/")
    put("top.csv", "/top.csv", "//top.csv")

    assert sorted(read(locations, f"s3://{bucket}/{text}")) == expected


@pytest.mark.parametrize("key", ["in/./a.csv", "in/../a.csv", "in/sub/..", "./a.csv", "in/.."])
def test_a_key_that_some_servers_take_for_another_is_refused_by_its_name(
    locations: Locations, bucket: str, put: Callable[..., None], key: str
) -> None:
    """One that keeps objects as files would read `a.csv` for `in/../a.csv`, which may be another tenant's."""
    put("in/a.csv", "in/z.csv", key)

    with pytest.raises(InvalidRequest, match=re.escape(f"s3://{bucket}/{key} cannot be read")) as refused:
        read(locations, f"s3://{bucket}/")
    assert refused.value.code == "unreadable_input"
    with pytest.raises(LocationNotAllowed):
        ObjectUri.parse(f"s3://{bucket}/{key}")
    assert set(read(locations, f"s3://{bucket}/in/*.csv")) == {"in/a.csv", "in/z.csv"}


def test_a_tenant_does_not_leave_its_part_of_a_bucket_by_empty_parts() -> None:
    locations = Locations(s3_buckets=("bkt/mine",))
    for text in ("s3://bkt//mine/a", "s3://bkt//", "s3://bkt/mine//../other/a", "s3://bkt/mine/./../other/"):
        with pytest.raises(LocationNotAllowed):
            locations.check(ObjectUri.parse(text), TENANT)
    locations.check(ObjectUri.parse("s3://bkt/mine//a"), TENANT)


@pytest.mark.parametrize("is_dataset", [True, False])
def test_state_json_and_cache_arrow_are_left_out_of_folders_of_datasets_alone(
    locations: Locations, bucket: str, put: Callable[..., None], is_dataset: bool
) -> None:
    names = ["in/cache-a.arrow", "in/sub/cache-a.arrow", "in/sub/state.json"]
    put("in/a.csv", "in/dataset_info.json" if is_dataset else "in/dataset_dict.json", *names)
    if is_dataset:
        put("in/sub/dataset_info.json")

    assert sorted(read(locations, f"s3://{bucket}/in/")) == ["in/a.csv", *([] if is_dataset else names)]


def test_what_a_job_writes_without_rows_is_no_data_and_no_file_of_a_user_is_taken_for_it() -> None:
    users = ("manifest.json", "manifest-20261127.json", "inputs-20261127.jsonl", "inputs-20261127.ndjson")
    for name in ("part-00000-4k3j2h1g.jsonl", "errors-00000-4k3j2h1g.parquet", *users, "a..b.csv"):
        assert is_data(name)
        assert is_data(f"folder/{name}")
    for name in ("_manifest-4k3j2h1g.json", "_manifest.json", "_inputs-4k3j2h1g.ndjson", "_x", ".x", "..x"):
        assert not is_data(name)
        assert not is_data(f"folder/{name}")


# -- servers that list otherwise -------------------------------------------------------------------------


def reversed_entries(page: bytes) -> bytes:
    entries = re.findall(rb"<Contents>.*?</Contents>", page, re.DOTALL)
    return page.replace(b"".join(entries), b"".join(reversed(entries)))


FAULTS = {
    "an order of its own": (Rewritten(reversed_entries), "behind a key that sorts after it"),
    "an older listing": (
        Rewritten(lambda page: page.replace(b"<IsTruncated>false", b"<IsTruncated>true")),
        "does not say how the listing goes on",
    ),
    "no listing": (Refused(501, "NotImplemented"), "NotImplemented"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_lists_otherwise_is_refused_for_good_and_nothing_left_out(
    moto_server: S3Server, bucket: str, put: Callable[..., None], fault: str
) -> None:
    put("in/a.csv", "in/b.csv", "in/c.csv")
    met, message = FAULTS[fault]
    with faulty_s3(moto_server) as front, closing(Locations(s3_buckets=(bucket,))) as locations:
        with front.server().in_environment():
            locations.open(ObjectUri.parse(f"s3://{bucket}/"), TENANT)
        front.set(ANY, met, path="list-type")

        with pytest.raises((InvalidRequest, StorageError), match=message) as refused:
            read(locations, f"s3://{bucket}/in/")
    assert storage_verdict(refused.value, in_our_store=False) == "fail"
    assert "in/" in refused.value.message


# -- directories -----------------------------------------------------------------------------------------


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has at most 107 bytes
        finally:
            os.close(folder)


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a socket": (a_socket, "it is no file"),
    "a pipe": (os.mkfifo, "it is no file"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "it is no file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "lead in a circle"),
    "a link out": (lambda path: path.symlink_to("/etc/hostname"), "outside the directories"),
    "a link to a folder out": (lambda path: path.symlink_to("/etc"), "links to folders are not followed"),
    "a link to a hidden folder": (
        lambda path: path.symlink_to(next(path.parents[1].rglob("_hidden"))),
        "links to folders are not followed",
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("in/a.csv", "in/b.csv", "in/sub/c.csv", "in/_hidden/d.csv", "beside.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def names_read(root: Path, text: str) -> list[str]:
    bodies = read(Locations(file_roots=(root,)), f"{root.as_uri()}/{text}")
    return [os.path.relpath(f"/{key}", root) for key in bodies]


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("name", ["in/aa.csv", "in/sub/z.csv"])
def test_what_is_no_file_in_a_directory_is_refused_by_its_name_where_it_would_be_data(
    root: Path, kind: str, name: str
) -> None:
    make, reason = UNREADABLE[kind]
    make(root / name)
    is_folder = "folder" in kind
    named = re.escape(f"{root.as_uri()}/{name}") + ("/" if is_folder else "")

    for text in ("in/", "", "i?/"):
        with pytest.raises(InvalidRequest, match=rf"^{named} cannot be read: .*{reason}") as refused:
            names_read(root, text)
        assert refused.value.code == "unreadable_input"
    assert names_read(root, "in/b*.csv") == ["in/b.csv"]
    assert names_read(root, "in/_hidden/") == ["in/_hidden/d.csv"]


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_file_and_no_data_is_in_nobodys_way(root: Path, kind: str) -> None:
    make, _ = UNREADABLE[kind]
    for name in ("in/.hidden", "in/_hidden/x.csv", "in/README.md", "in/sub/_x"):
        make(root / name)

    is_folder = "folder" in kind
    assert names_read(root, "in/*.csv") == ["in/a.csv", "in/b.csv"]
    if is_folder:  # a folder called README.md may have data
        (root / "in/README.md").unlink()
    assert names_read(root, "in/") == ["in/a.csv", "in/b.csv", "in/sub/c.csv"]


def test_a_name_that_is_not_utf8_is_refused_in_quotes(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/in/caf\xe9.csv")).write_bytes(b"x")

    with pytest.raises(InvalidRequest, match=r"/in/caf%E9\.csv cannot be read: .* UTF-8"):
        names_read(root, "in/")
    assert names_read(root, "in/a*.csv") == ["in/a.csv"]


def test_a_path_that_is_too_long_is_refused_by_its_name(root: Path) -> None:
    folder = root / "in" / "x" / ("y" * 250) / ("y" * 250) / ("y" * 250) / ("y" * 250)
    folder.mkdir(parents=True)
    (folder / "long.csv").write_bytes(b"x")

    with pytest.raises(InvalidRequest, match=r"/long\.csv cannot be read: .* exceeds the 1024 allowed"):
        names_read(root, "in/")


def test_a_link_to_a_folder_that_is_read_anyway_is_left_out(root: Path) -> None:
    """The same as `latest` is: its rows would be there twice."""
    (root / "in" / "latest").symlink_to("sub")
    (root / "in" / "sub" / "again").symlink_to(root / "in")

    assert names_read(root, "in/") == ["in/a.csv", "in/b.csv", "in/sub/c.csv"]
    assert names_read(root, "in/latest/c.csv") == ["in/latest/c.csv"]
    assert names_read(root, "in/*") == ["in/a.csv", "in/b.csv"]


@pytest.mark.parametrize("text", ["in/*/*.csv", "in/l*/", "*/latest/c.csv"])
def test_a_pattern_that_leads_through_a_linked_folder_is_refused_by_its_name(root: Path, text: str) -> None:
    (root / "in" / "latest").symlink_to("sub")

    with pytest.raises(InvalidRequest, match=r"/in/latest/ cannot be read: links to folders"):
        names_read(root, text)


def test_a_folder_that_may_not_be_listed_is_refused_by_its_name_where_it_may_have_data(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superuser may list any: so the system's answer to another is given here."""
    scandir = os.scandir

    def refused(path: Path) -> object:
        if path.name in ("sub", "_hidden"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(directory_files.os, "scandir", refused)
    for text, name in (("in/", "sub"), ("in/*/*.csv", "_hidden")):
        with pytest.raises(InvalidRequest, match=rf"/in/{name}/ cannot be read: its names"):
            names_read(root, text)
    assert names_read(root, "in/*.csv") == ["in/a.csv", "in/b.csv"]


def test_a_file_that_may_not_be_read_is_refused_by_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *how: object, **more: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(
        StorageDenied, match=r"file:///.*in/a\.csv: Permission denied to the user that the service runs as"
    ):
        names_read(root, "in/")


def test_a_socket_that_is_named_is_not_found(root: Path) -> None:
    a_socket(root / "in" / "s.csv")
    with pytest.raises(ObjectNotFound, match=r"in/s\.csv"):
        names_read(root, "in/s.csv")
