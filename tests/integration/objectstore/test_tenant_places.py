"""Whose place is whose: what one tenant's jobs may name, no other's may, and none the service's own."""

import itertools
from contextlib import closing
from pathlib import Path

import pytest

from nightshift.errors import ConfigurationError, InvalidRequest, LocationNotAllowed
from nightshift.objectstore import Locations, ObjectUri
from nightshift.process.settings import DataSettings, LocationSettings
from tests.helpers.fakes import expanded
from tests.integration.servers import S3Server

TENANTS = ("default", "acme", "globex")


@pytest.fixture(params=["file", "moto"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Locations, dict[str, str]]:
    """Three tenants' locations, each given in another way, and each one's URL."""
    if request.param == "file":
        names = [str(tmp_path / "own"), f"acme={tmp_path / 'a'}", str(tmp_path / "all" / "{tenant}")]
        urls = [(tmp_path / name).as_uri() for name in ("own", "a", "all/globex")]
        return Locations(file_roots=names), dict(zip(TENANTS, urls, strict=True))
    server: S3Server = request.getfixturevalue("moto_server")
    buckets = [server.new_bucket() for _ in range(2)]
    names = [buckets[0], f"acme={buckets[1]}/a", f"{buckets[1]}/all/{{tenant}}"]
    urls = [f"s3://{buckets[0]}", f"s3://{buckets[1]}/a", f"s3://{buckets[1]}/all/globex"]
    with server.in_environment():
        locations = Locations(s3_buckets=names)
        locations.open(ObjectUri.parse(f"{urls[0]}/"), "default")
    return locations, dict(zip(TENANTS, urls, strict=True))


@pytest.mark.parametrize(("tenant", "owner"), list(itertools.product(TENANTS, TENANTS)))
def test_a_tenant_reads_lists_and_writes_its_own_place_and_no_other(
    places: tuple[Locations, dict[str, str]], tenant: str, owner: str
) -> None:
    locations, urls = places
    exact, pattern, prefix = (ObjectUri.parse(f"{urls[owner]}{end}") for end in ("/x.jsonl", "/*.jsonl", "/"))
    with closing(locations):
        locations.open(exact, owner).put(exact.key, b"{}\n")
        if tenant == owner:
            for uri in (exact, pattern, prefix):
                assert [info.key for info in expanded(locations, uri, tenant)] == [exact.key]
            return
        for uri in (exact, pattern, prefix):
            with pytest.raises(LocationNotAllowed):
                expanded(locations, uri, tenant)
            with pytest.raises(LocationNotAllowed):
                locations.open(uri, tenant)


@pytest.mark.parametrize("beside", ["-beside/x", "x", "/../a/x"])
def test_a_place_ends_where_its_name_ends(tmp_path: Path, beside: str) -> None:
    locations = Locations(s3_buckets=["bucket/acme"], file_roots=[tmp_path / "acme"])

    for root in ("s3://bucket/acme", (tmp_path / "acme").as_uri()):
        with pytest.raises(LocationNotAllowed):
            locations.check(ObjectUri.parse(f"{root}{beside}"), "default")


def test_a_folder_that_stands_for_a_tenants_name_cannot_be_chosen_by_another(tmp_path: Path) -> None:
    locations = Locations(file_roots=[tmp_path / "{tenant}" / "in"])

    locations.check(ObjectUri.parse((tmp_path / "acme/in/x").as_uri()), "acme")
    for path in (
        "acme/x",
        "globex/in/x",
        "x",
        "{tenant}/in/x",
        "acme/in/../../globex/in/x",
        "acme/in/%2e%2e/%2e%2e/globex/in/x",
    ):
        with pytest.raises(LocationNotAllowed):
            locations.check(ObjectUri.parse(f"{tmp_path.as_uri()}/{path}"), "acme")


@pytest.mark.parametrize("tenant", ["../globex", "acme/..", "..", ".", "a/b", "/"])
def test_a_tenants_name_of_an_earlier_release_leads_nowhere(tmp_path: Path, tenant: str) -> None:
    """Keys could be made for any name."""
    locations = Locations(s3_buckets=["bucket/in/{tenant}"], file_roots=[tmp_path / "in" / "{tenant}"])

    for root in (tmp_path.as_uri(), "s3://bucket"):
        for path in ("x", "globex/x", "in/x", "in/globex/x", f"in/{tenant}/x"):
            with pytest.raises(LocationNotAllowed):
                locations.check(ObjectUri.parse(f"{root}/{path}"), tenant)


def test_a_link_into_anothers_place_is_not_followed(tmp_path: Path) -> None:
    for name in ("acme", "globex"):
        (tmp_path / name).mkdir()
    (tmp_path / "globex" / "secret.jsonl").write_bytes(b"{}\n")
    (tmp_path / "acme" / "link").symlink_to(tmp_path / "globex")
    (tmp_path / "acme" / "one.jsonl").symlink_to(tmp_path / "globex" / "secret.jsonl")
    locations = Locations(file_roots=[tmp_path / "{tenant}"])

    for name in ("link/secret.jsonl", "link/*.jsonl", "one.jsonl", "*.jsonl", "*/secret.jsonl", ""):
        with pytest.raises(InvalidRequest) as refused:
            expanded(locations, ObjectUri.parse(f"{(tmp_path / 'acme').as_uri()}/{name}"), "acme")
        assert "globex" not in refused.value.message


@pytest.mark.parametrize(
    ("setting", "places"),
    [
        ("FILE_ROOTS", "/srv,acme=/srv/acme"),
        ("FILE_ROOTS", "acme=/srv/a,globex=/srv/a"),
        ("FILE_ROOTS", "/srv/{tenant},acme=/srv/acme"),
        ("FILE_ROOTS", "/srv/{tenant},/srv"),
        ("FILE_ROOTS", "/srv/{tenant}/a,/srv/{tenant}/b"),
        ("FILE_ROOTS", "/srv/x{tenant}"),
        ("FILE_ROOTS", "/{tenant}/{tenant}"),
        ("FILE_ROOTS", "acme=/srv/{tenant}"),
        ("S3_BUCKETS", "b,acme=b"),
        ("S3_BUCKETS", "acme=b/docs,b"),
        ("S3_BUCKETS", "{tenant}"),
        ("S3_BUCKETS", "b/{tenant},acme=b/acme/in"),
    ],
)
def test_places_that_tenants_would_share_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, setting: str, places: str
) -> None:
    monkeypatch.setenv(f"NIGHTSHIFT_{setting}", places)

    with pytest.raises(ConfigurationError) as refused:
        Locations.of_settings(LocationSettings(), DataSettings())

    assert refused.value.param == setting


class TestTheServicesOwn:
    """The service's own keys, database and objects."""

    @pytest.fixture
    def data(self, tmp_path: Path) -> DataSettings:
        data = DataSettings(data_dir=tmp_path / "home" / ".nightshift")
        for name in ("api_key", "nightshift.db", "objects/files/acme/file-1", "files/in.jsonl"):
            path = data.data_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}\n")
        (tmp_path / "home" / "in.jsonl").write_bytes(b"{}\n")
        return data

    @pytest.mark.parametrize(
        "name",
        [
            ".nightshift/api_key",
            ".nightshift/objects/files/acme/file-1",
            ".nightshift/objects/files/acme/*",
            ".nightshift/objects/",
            ".nightshift/*",
            ".nightshift/new.jsonl",
            "link/files/acme/file-1",
            "link/files/acme/",
        ],
    )
    def test_it_cannot_be_named_from_a_directory_that_holds_it(
        self, data: DataSettings, tmp_path: Path, name: str
    ) -> None:
        home = tmp_path / "home"
        (home / "link").symlink_to(data.data_dir / "objects")
        locations = Locations.of_settings(LocationSettings(file_roots=(str(home),)), data)
        uri = ObjectUri.parse(f"{home.as_uri()}/{name}")

        with pytest.raises(LocationNotAllowed):
            expanded(locations, uri, "default")
        with pytest.raises(LocationNotAllowed):
            locations.open(uri, "default")

    @pytest.mark.parametrize("pattern", ["", "*/*", "*/*/*/*", "*"])
    def test_a_listing_does_not_show_it(self, data: DataSettings, tmp_path: Path, pattern: str) -> None:
        home = tmp_path / "home"
        (home / "a/b/c").mkdir(parents=True)
        for name in ("a/x", "a/b/c/x"):
            (home / name).touch()
        locations = Locations.of_settings(LocationSettings(file_roots=(str(home),)), data)

        objects = expanded(locations, ObjectUri.parse(f"{home.as_uri()}/{pattern}"), "default")

        assert objects
        assert not any(".nightshift" in info.key for info in objects)

    def test_its_part_for_jobs_can_be_named(self, data: DataSettings, tmp_path: Path) -> None:
        roots = (str(tmp_path / "home"), str(data.files_dir))
        locations = Locations.of_settings(LocationSettings(file_roots=roots), data)

        objects = expanded(locations, ObjectUri.parse(f"{data.files_dir.as_uri()}/*.jsonl"), "default")

        assert len(objects) == 1

    @pytest.mark.parametrize("part", ["", "/objects/files", "/valkey"])
    def test_a_tenant_that_is_called_as_its_directory_does_not_get_it(
        self, tmp_path: Path, part: str
    ) -> None:
        data = DataSettings(data_dir=tmp_path / "nightshift")
        locations = Locations.of_settings(
            LocationSettings(file_roots=(f"{tmp_path}/{{tenant}}{part}",)), data
        )

        locations.check(ObjectUri.parse((tmp_path / f"acme{part}/x").as_uri()), "acme")
        with pytest.raises(LocationNotAllowed):
            locations.check(ObjectUri.parse((tmp_path / f"nightshift{part}/x").as_uri()), "nightshift")

    @pytest.mark.parametrize("name", ["", "/objects", "/objects/files/acme", "/new"])
    def test_no_tenants_place_may_lie_in_it(self, data: DataSettings, name: str) -> None:
        roots = (f"{data.data_dir}{name}",)

        with pytest.raises(ConfigurationError, match="own data"):
            Locations.of_settings(LocationSettings(file_roots=roots), data)

    @pytest.mark.parametrize(
        "bucket", ["mine", "mine/objects", "mine/objects/files", "acme=mine", "mine/{tenant}"]
    )
    def test_its_part_of_a_bucket_is_no_tenants(self, tmp_path: Path, bucket: str) -> None:
        data = DataSettings(data_dir=tmp_path, storage_url="s3://mine/objects")

        with pytest.raises(ConfigurationError, match="own objects"):
            Locations.of_settings(LocationSettings(s3_buckets=(bucket,)), data)
        Locations.of_settings(LocationSettings(s3_buckets=("mine/in", "acme=other")), data)

    def test_a_database_elsewhere_is_not_named_either(self, tmp_path: Path) -> None:
        data = DataSettings(data_dir=tmp_path / "data", database_url=f"sqlite:///{tmp_path}/x.db")
        (tmp_path / "x.db-wal").touch()
        locations = Locations.of_settings(LocationSettings(file_roots=(str(tmp_path),)), data)

        with pytest.raises(LocationNotAllowed):
            locations.check(ObjectUri.parse((tmp_path / "x.db-wal").as_uri()), "default")


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("s3://elsewhere/x.jsonl", "NIGHTSHIFT_S3_BUCKETS"),
        ("file:///srv/x.jsonl", "NIGHTSHIFT_FILE_ROOTS; `nightshift up` allows the directory"),
    ],
)
def test_a_refused_place_names_the_setting_that_allows_places(uri: str, named: str) -> None:
    with pytest.raises(LocationNotAllowed, match=named):
        Locations().check(ObjectUri.parse(uri), "default")
