"""Datasets of a hub, over HTTP: what is read of them, for whom, and how each refusal is told."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from huggingface_hub import HfApi, snapshot_download

from nightshift.errors import (
    ConfigurationError,
    CredentialsRefused,
    InvalidRequest,
    LocationNotAllowed,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore import Locations, ObjectChanged, ObjectReader, ObjectUri
from nightshift.objectstore import hub as hub_module
from nightshift.objectstore.hub import Hub
from nightshift.objectstore.verdicts import storage_verdict
from nightshift.outbound.safe_http import Egress, EgressConfig
from tests.helpers.hub import FakeDataset, FakeHub, fake_hub
from tests.helpers.receiver import receiver, says
from tests.unit.nightshift.outbound.test_safe_http import ANY_PORT, LOOPBACK, certified

LARGE = bytes(range(256)) * 100
FILES = {
    ".gitattributes": b"",
    "README.md": b"# About",
    "b.jsonl": b'{"text": "b"}\n',
    "a b/ü.jsonl": b'{"text": "u"}\n' * 3,
    "data/train-1.parquet": LARGE,
    "data/train-0.parquet": LARGE * 2,
    "data/test-0.parquet": LARGE[1:],
    "data-old/x.jsonl": b"",
}
DATA = [
    "a b/ü.jsonl",
    "b.jsonl",
    "data-old/x.jsonl",
    *(f"data/{name}-0.parquet" for name in ("test", "train")),
]
DATA.append("data/train-1.parquet")
TOKEN = "hf_of_the_operator"


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with fake_hub() as fake:
        fake.datasets["org/docs"] = FakeDataset()
        fake.datasets["org/docs"].push(FILES)
        yield fake


def locations(fake: FakeHub, token: str = "", *tenants: str) -> Locations:
    return Locations(hub=Hub(fake.url, token, tenants))


def opened(fake: FakeHub, revision: str = "") -> ObjectReader:
    return locations(fake).reader(ObjectUri.parse(f"hf://datasets/org/docs{revision}/"), "default")


def listed(fake: FakeHub, uri: str) -> list[str]:
    return [
        entry.info.key for entry in locations(fake).listed(ObjectUri.parse(uri), "default") if entry.is_match
    ]


def test_the_hub_of_these_tests_is_one_to_huggingface_hub(fake: FakeHub, tmp_path: Path) -> None:
    fake.page_entries, fake.files_url = 3, fake.url.replace("127.0.0.1", "localhost")
    api = HfApi(endpoint=fake.url, token=False)
    entries = list(api.list_repo_tree("org/docs", repo_type="dataset", recursive=True))
    folder = snapshot_download(
        "org/docs", repo_type="dataset", endpoint=fake.url, token=False, cache_dir=tmp_path
    )

    assert {entry.path for entry in entries} >= FILES.keys()
    assert {name: (Path(folder) / name).read_bytes() for name in FILES} == FILES

    # Without a hub, what its client keeps is a folder as any other.
    kept = Locations(file_roots=(tmp_path,))
    uri = ObjectUri.parse(f"{Path(folder).as_uri()}/")
    keys = [entry.info.key for entry in kept.listed(uri, "default") if entry.is_match]
    assert [key.removeprefix(uri.key) for key in keys] == DATA


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("", DATA),
        ("/", DATA),
        ("/b.jsonl", ["b.jsonl"]),
        ("/data/", DATA[3:]),
        ("/data/train-*", DATA[4:]),
        ("/*/*.jsonl", ["a b/ü.jsonl", "data-old/x.jsonl"]),
        ("@main/data/test-0.parquet", ["data/test-0.parquet"]),
    ],
)
def test_a_file_a_folder_and_a_pattern_stand_for_the_data_in_byte_order(
    fake: FakeHub, path: str, keys: list[str]
) -> None:
    fake.page_entries, fake.links_host = 2, "https://another.example"
    assert listed(fake, f"hf://datasets/org/docs{path}") == keys


def test_a_file_of_the_default_revision_is_one_object_whether_or_not_that_is_named() -> None:
    named, unnamed = (ObjectUri.parse(f"hf://datasets/org/docs{at}/a.jsonl") for at in ("@main", ""))
    assert str(named) == str(unnamed)


def test_a_listing_goes_on_behind_a_key(fake: FakeHub) -> None:
    assert [info.key for info in opened(fake).list("", "data/test-0.parquet")] == DATA[4:]


@pytest.mark.parametrize("key", ["b.jsonl", "data/train-0.parquet", "data-old/x.jsonl", "a b/ü.jsonl"])
def test_an_object_has_its_bytes_by_any_range(
    fake: FakeHub, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "BLOCK_BYTES", 10_000)
    content, store = FILES[key], opened(fake)
    (of_listing,) = [info for info in store.list() if info.key == key]

    info = store.head(key)
    assert info == of_listing
    assert info.size_bytes == len(content)
    assert store.read(key) == content
    for start, end in (
        (0, None),
        (5, None),
        (0, 7),
        (9_999, 20_001),
        (len(content), None),
        (len(content) + 5, None),
    ):
        pieces = list(store.stream(key, start, end, chunk_bytes=4_000))
        assert b"".join(pieces) == content[start:end]
        assert max(map(len, pieces), default=0) <= 4_000


def test_what_is_not_there_is_not_found(fake: FakeHub) -> None:
    store = opened(fake)
    assert store.head("gone.jsonl") is None
    assert list(store.list("gone/")) == []
    with pytest.raises(ObjectNotFound, match=r"hf://datasets/org/docs/gone\.jsonl"):
        list(store.stream("gone.jsonl"))
    with pytest.raises(ObjectNotFound, match="nothing found at hf://datasets/org/docs/gone/"):
        listed(fake, "hf://datasets/org/docs/gone/")


# -- revisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["v1.0", "refs/convert/parquet", "a/b"])
def test_a_revision_is_a_tag_a_branch_or_a_commit(fake: FakeHub, revision: str) -> None:
    commit = fake.datasets["org/docs"].push({"c.jsonl": b"{}\n"}, revision)

    uri = ObjectUri.parse(f"hf://datasets/org/docs@{quote(revision, safe='')}/*.jsonl")
    assert ObjectUri.parse(str(uri)) == uri
    pinned = locations(fake).pinned(uri, "default")
    assert str(pinned) == f"hf://datasets/org/docs@{commit}/*.jsonl"
    assert listed(fake, str(uri)) == listed(fake, str(pinned)) == ["c.jsonl"]
    requests_before = len(fake.requests)
    assert locations(fake).pinned(pinned, "default") == pinned
    assert len(fake.requests) == requests_before


def test_a_commit_is_read_whatever_is_pushed_and_a_branch_only_as_it_was(fake: FakeHub) -> None:
    docs = fake.datasets["org/docs"]
    branch, commit = opened(fake), opened(fake, f"@{docs.commit(0)}")
    info = branch.head("b.jsonl")
    assert info is not None
    docs.push({"b.jsonl": b"others"})

    assert b"".join(commit.stream("b.jsonl", if_match=info.etag)) == FILES["b.jsonl"]
    with pytest.raises(ObjectChanged):
        list(branch.stream("b.jsonl", if_match=info.etag))
    assert branch.read("b.jsonl") == b"others"


def test_a_branch_that_moves_while_an_object_is_read_mixes_no_bytes(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "BLOCK_BYTES", 4)
    pieces = opened(fake).stream("b.jsonl")
    next(pieces)
    fake.datasets["org/docs"].push({"b.jsonl": b"others, and more of them"})
    with pytest.raises(ObjectChanged):
        list(pieces)


@pytest.mark.parametrize(
    "text",
    [
        *("hf://", "hf://datasets", "hf://datasets/", "hf://datasets/squad", "hf://datasets//name/a"),
        *(
            "hf://org/name/a.jsonl",
            "hf://models/org/name/a",
            "hf://spaces/org/name/a",
            "hf://datasets/../name/a",
        ),
        *("hf://datasets/org/..", "hf://datasets/org/na me/a", "hf://datasets/org/name@/a"),
        *(
            "hf://datasets/org/name@../a",
            "hf://datasets/org/name@%2E%2E/a",
            "hf://datasets/org/name@a%2F..%2Fb/a",
        ),
        *("hf://datasets/org/name@v1?x/a", "hf://datasets/org/name@main@v1/a", "hf://datasets/o%2Frg/name/a"),
        *("hf://datasets/org/name/../a", "hf://datasets/org/name//a", "hf://datasets/org/name/a/.."),
    ],
)
def test_what_names_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        ObjectUri.parse(text)


def test_a_dataset_is_no_place_to_write_to(fake: FakeHub) -> None:
    with pytest.raises(LocationNotAllowed, match="do not write"):
        locations(fake).open(ObjectUri.parse("hf://datasets/org/docs/out/"), "default")


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("org/unknown/", ObjectNotFound, "no such dataset, or it is private"),
        ("org/private/", ObjectNotFound, "no such dataset, or it is private"),
        ("org/gated/", StorageDenied, "the dataset is gated"),
        ("org/docs@v9/", ObjectNotFound, "no such revision"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_refused_by_its_name(
    fake: FakeHub, uri: str, error: type[StorageError], words: str
) -> None:
    fake.datasets["org/private"] = FakeDataset(is_private=True)
    fake.datasets["org/gated"] = FakeDataset(is_gated=True)
    for dataset in ("org/private", "org/gated"):
        fake.datasets[dataset].push(FILES)
    places, location = locations(fake), ObjectUri.parse(f"hf://datasets/{uri}b.jsonl")

    with pytest.raises(error, match=words) as refused:
        places.reader(places.pinned(location, "default"), "default").read("b.jsonl")

    assert f"hf://datasets/{uri.partition('@')[0].rstrip('/')}" in refused.value.message
    assert storage_verdict(refused.value, in_our_store=False) == "fail"


def test_the_token_is_the_operators_and_only_of_the_tenants_that_a_setting_names(fake: FakeHub) -> None:
    fake.tokens.add(TOKEN)
    fake.datasets["org/private"] = FakeDataset(is_private=True)
    fake.datasets["org/private"].push(FILES)
    uri, places = ObjectUri.parse("hf://datasets/org/private/b.jsonl"), locations(fake, TOKEN, "acme")

    with pytest.raises(ObjectNotFound):
        places.reader(uri, "default").read("b.jsonl")
    assert not any("authorization" in headers for _, _, headers in fake.requests)
    assert places.reader(uri, "acme").read("b.jsonl") == FILES["b.jsonl"]
    fake.tokens.clear()
    with pytest.raises(CredentialsRefused, match="HF_TOKEN") as refused:
        places.reader(uri, "acme").read("b.jsonl")
    assert TOKEN not in refused.value.message


def test_the_token_and_the_endpoint_are_those_of_the_environment(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{fake.url}/")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fake.tokens.add(TOKEN)
    uri = ObjectUri.parse("hf://datasets/org/docs/b.jsonl")
    assert Hub.of_environment(("acme",)).dataset(uri, "acme").read("b.jsonl") == FILES["b.jsonl"]
    assert fake.requests[-1][2]["authorization"] == f"Bearer {TOKEN}"
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    Hub.of_environment(("acme",)).dataset(uri, "acme").head("b.jsonl")
    assert fake.requests[-1][2]["authorization"] == f"Bearer {TOKEN}"
    for odd in (f"{TOKEN}\nx", f"{TOKEN}ü"):
        monkeypatch.setenv("HF_TOKEN", odd)
        with pytest.raises(ConfigurationError, match="HF_TOKEN") as refused:
            Hub.of_environment(())
        assert TOKEN not in refused.value.message
    monkeypatch.delenv("HF_TOKEN")
    for wrong in ("huggingface.co", "ftp://hub", "https://user:password@hub"):
        monkeypatch.setenv("HF_ENDPOINT", wrong)
        with pytest.raises(ConfigurationError, match="HF_ENDPOINT"):
            Hub.of_environment(())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((503, b"", {}), StorageUnavailable),
        ((429, b"", {}), StorageUnavailable),
        ((403, b"", {}), StorageDenied),
        ((418, b"", {}), StorageError),
        ((200, b"<html>", {}), StorageUnavailable),
        ((200, b'{"a": 1}', {}), StorageUnavailable),
        ((200, b'[{"path": "a"}]', {}), StorageUnavailable),
        ((200, b'[{"type": "file", "path": "\\ud800", "size": 1, "oid": "a"}]', {}), StorageUnavailable),
    ],
)
def test_a_hub_that_fails_or_talks_of_something_else_is_told_of(
    fake: FakeHub, answer: tuple[int, bytes, dict[str, str]], error: type[StorageError]
) -> None:
    fake.fault = lambda path: answer
    places, uri = locations(fake), ObjectUri.parse("hf://datasets/org/docs/")
    for ask in (lambda: places.pinned(uri, "default"), lambda: list(places.reader(uri, "default").list())):
        with pytest.raises(StorageError) as told:
            ask()
        assert type(told.value) is error


def test_a_hub_that_is_away_may_come_back(fake: FakeHub) -> None:
    faults = iter([(200, b"short", {"Content-Length": "14"})])
    fake.fault = lambda path: next(faults, None)
    rows = b"".join(opened(fake).stream("b.jsonl"))
    assert rows == FILES["b.jsonl"], "a body that breaks off is read again"

    away = Locations(hub=Hub("http://127.0.0.1:1"))
    with pytest.raises(StorageUnavailable, match="the hub does not answer") as told:
        away.pinned(ObjectUri.parse("hf://datasets/org/docs/"), "default")
    assert storage_verdict(told.value, in_our_store=False) == "retry"


@pytest.mark.parametrize(
    "answer",
    [
        (206, b"0123456789", {"Content-Range": "bytes 7-16/100"}),
        (206, b"0123456789", {}),
        (206, b"01234", {"Content-Range": "bytes 0-4/14"}),
        (200, bytes(hub_module.ANSWER_BYTES_MAX), {}),
    ],
)
def test_other_bytes_than_those_that_were_asked_for_are_no_rows(
    fake: FakeHub, answer: tuple[int, bytes, dict[str, str]]
) -> None:
    fake.fault = lambda path: answer
    with pytest.raises(StorageError, match="range"):
        list(opened(fake).stream("b.jsonl", 0, 14))


def test_a_small_file_may_come_whole(fake: FakeHub) -> None:
    fake.fault = lambda path: (200, b"0123456789", {})
    assert b"".join(opened(fake).stream("b.jsonl", 2, 5)) == b"234"
    assert b"".join(opened(fake).stream("b.jsonl", 2)) == b"23456789"


def test_a_listing_ends(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PAGES_MAX", 3)
    fake.page_entries = 1
    with pytest.raises(InvalidRequest, match="more than 3 pages of files") as refused:
        list(opened(fake).list())
    assert refused.value.code == "too_many_objects"


# -- redirects ---------------------------------------------------------------------------------------------


def redirect(location: str) -> tuple[int, bytes, dict[str, str]]:
    return 302, b"", {"Location": location}


@pytest.mark.parametrize(
    "location",
    [
        *(
            "http://127.0.0.1:9/secret",
            "https://127.0.0.1/secret",
            "https://10.0.0.1/",
            "http://example.com/a",
        ),
        *("https://169.254.169.254/latest", "https://metadata.google.internal/", "ftp://x/", "https://[::1/"),
    ],
)
def test_the_hub_sends_nobody_to_an_address_that_is_not_public(fake: FakeHub, location: str) -> None:
    fake.fault = lambda path: redirect(location)
    with pytest.raises(StorageDenied, match="an address that is not public"):
        list(opened(fake).stream("b.jsonl"))


def test_redirects_end(fake: FakeHub) -> None:
    fake.fault = lambda path: redirect("/round")
    with pytest.raises(StorageUnavailable, match="redirects more than"):
        list(opened(fake).stream("b.jsonl"))


def test_a_hub_that_says_no_size_is_followed_to_where_the_size_is_known(fake: FakeHub) -> None:
    key = "data/train-1.parquet"
    status, body, shown = fake.answer(f"/datasets/org/docs/resolve/main/{key}", {})
    moved = {"Location": shown["Location"], "ETag": '"of-a-mirror"'}
    fake.fault = lambda path: None if path.startswith("/files/") else (status, body, moved)
    info = opened(fake).head(key)
    assert info is not None
    assert (info.size_bytes, info.etag) == (len(LARGE), "of-a-mirror")


def test_another_host_is_sent_the_range_and_never_the_token(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certified(tmp_path, "files.example.test")
    fake.tokens.add(TOKEN)
    hub = Hub(fake.url, TOKEN, ("default",))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
    with receiver(says(206, LARGE[:3], content_range=f"bytes 0-2/{len(LARGE)}"), tls) as there:
        config = EgressConfig((LOOPBACK,), ANY_PORT)
        there_is_public = Egress(config, resolve=lambda host, port: ["127.0.0.1"], tls=trusting)
        hub.__dict__["_egresses"] = (hub._egresses[0], there_is_public)
        fake.files_url = f"https://files.example.test:{there.port}"
        store = hub.dataset(ObjectUri.parse("hf://datasets/org/docs/"), "default")
        assert b"".join(store.stream("data/train-1.parquet", 0, 3)) == LARGE[:3]
        head = store.head("data/train-1.parquet")

    (sent,) = there.requests
    assert head is not None
    assert head.size_bytes == len(LARGE), "the hub says it, without the other host"
    assert (sent.headers["range"], "authorization" in sent.headers) == ("bytes=0-2", False)
    assert fake.requests[0][2]["authorization"] == f"Bearer {TOKEN}"
