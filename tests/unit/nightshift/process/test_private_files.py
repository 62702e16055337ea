"""The service's own files are closed to other users, whoever made their folder; outputs of jobs are not."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.objectstore import DirectoryStore, Locations, ObjectUri
from nightshift.process import private_files
from nightshift.process.private_files import keep_files_private
from nightshift.process.settings import DataSettings, LocationSettings


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that was started with umask 022, and its environment."""
    monkeypatch.setenv("NIGHTSHIFT_OUTPUT_UMASK", "022")
    monkeypatch.delenv("NIGHTSHIFT_OUTPUT_UMASK")
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def data(tmp_path: Path) -> DataSettings:
    """Settings of a folder that the operator made."""
    (tmp_path / "data").mkdir(mode=0o755)
    return DataSettings(data_dir=tmp_path / "data", _env_file=None)


def made(path: Path) -> Path:
    """A file with folders, as open as the umask lets them be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("secret")
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_an_earlier_release_left_open_is_closed(data: DataSettings) -> None:
    names = ("nightshift.db", "nightshift.db-wal", "nightshift.db-shm", "api_key", "adapters", "logs/api.log")
    files = [made(data.data_dir / name) for name in (*names, "valkey/appendonlydir/x", "objects/files/a/b")]

    keep_files_private(data)

    assert {mode(path) for path in files} == {0o600}
    folders = ("logs", "valkey", "valkey/appendonlydir", "objects", "objects/files/a")
    assert {mode(data.data_dir / name) for name in folders} == {0o700}


def test_a_store_and_a_database_elsewhere_are_closed_too(data: DataSettings, tmp_path: Path) -> None:
    elsewhere = data.model_copy(
        update={
            "storage_url": (tmp_path / "store").as_uri(),
            "database_url": f"sqlite:///{tmp_path / 'db' / 'ns.db'}",
        }
    )
    files = [made(tmp_path / name) for name in ("store/segments/t/j/0", "db/ns.db", "db/ns.db-wal")]
    beside = [made(tmp_path / name) for name in ("db/another.txt", "store/another.txt", "store/photos/a.jpg")]

    keep_files_private(elsewhere)

    assert {mode(path) for path in files} == {0o600}
    assert mode(tmp_path / "store" / "segments") == 0o700
    assert (mode(tmp_path / "store"), mode(tmp_path / "db")) == (0o755, 0o755), "the operator's"
    assert {mode(path) for path in beside} == {0o644}
    assert mode(tmp_path / "store" / "photos") == 0o755


def test_a_directory_that_is_named_as_the_database_stays_open_with_all_in_it(
    data: DataSettings, tmp_path: Path
) -> None:
    """A mistake, as `sqlite:////srv`, that the next step refuses."""
    theirs = made(tmp_path / "srv" / "shared" / "report.txt")

    keep_files_private(data.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'srv'}"}))

    assert mode(theirs) == 0o644
    assert (mode(tmp_path / "srv"), mode(theirs.parent)) == (0o755, 0o755)


def test_what_links_of_the_operator_lead_to_is_closed_too(data: DataSettings, tmp_path: Path) -> None:
    """As to a larger disk. SQLite's logs are beside the file itself."""
    names = ("disk/ns.db", "disk/ns.db-wal", "disk/objects/files/a", "disk/api_key")
    files = [made(tmp_path / name) for name in names]
    others = [made(tmp_path / name) for name in ("disk/logs/syslog", "disk/objects/photos/a")]
    for link, target in (("nightshift.db", "ns.db"), ("logs", "logs"), ("objects", "objects")):
        (data.data_dir / link).symlink_to(tmp_path / "disk" / target)
    (data.data_dir / "api_key").symlink_to(tmp_path / "disk" / "api_key")

    keep_files_private(data)

    assert {mode(path) for path in files} == {0o600}
    assert {mode(path) for path in others} == {0o644}
    assert mode(tmp_path / "disk" / "logs") == 0o755, "the operator's"


def test_a_link_that_another_user_made_leads_nowhere(
    data: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write to the folder: else they choose whose modes are changed."""
    outside = made(tmp_path / "outside")
    (data.data_dir / "api_key").symlink_to(outside)
    if os.geteuid() == 0:
        os.lchown(data.data_dir / "api_key", 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)

    keep_files_private(data)

    assert mode(outside) == 0o644


def test_what_is_not_the_services_own_stays_as_it_is(data: DataSettings, tmp_path: Path) -> None:
    others = [made(data.data_dir / name) for name in ("files/out/part-0.jsonl", "models/tiny/config.json")]
    outside = made(tmp_path / "outside")
    (data.data_dir / "logs").mkdir()
    (data.data_dir / "logs" / "link").symlink_to(outside)

    keep_files_private(data)

    assert {mode(path) for path in (*others, outside)} == {0o644}


def test_a_start_looks_at_no_more_than_so_many_files_the_upper_ones_first(
    data: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = [made(data.data_dir / "objects" / "files" / "t" / str(number)) for number in range(50)]
    monkeypatch.setattr(private_files, "CLOSED_MAX", 10)

    keep_files_private(data)

    assert mode(data.data_dir / "objects") == 0o700, "nothing below it can be reached"
    assert 0 < sum(mode(path) == 0o600 for path in deep) < 10


@pytest.mark.parametrize(("given", "warns"), [(0o755, True), (0o711, True), (0o750, True), (0o700, False)])
def test_a_folder_that_is_open_is_named_and_stays_the_operators(
    data: DataSettings, given: int, warns: bool
) -> None:
    data.data_dir.chmod(given)
    warnings: list[str] = []

    keep_files_private(data, warnings.append)

    assert mode(data.data_dir) == given
    assert bool(warnings) == warns
    assert all(f"chmod 700 {data.data_dir}" in warning for warning in warnings)


def test_new_files_of_the_service_are_its_own_and_outputs_of_jobs_are_for_their_readers(
    data: DataSettings, tmp_path: Path
) -> None:
    keep_files_private(data)
    (tmp_path / "out").mkdir(mode=0o755)
    own = DirectoryStore(data.data_dir / "objects")
    own.put("files/t/file-1", b"answers")
    places = LocationSettings(file_roots=(str(tmp_path / "out"),), _env_file=None)
    store = Locations.of_settings(places, data).open(ObjectUri.parse((tmp_path / "out").as_uri()), "default")
    key = str(tmp_path / "out" / "a" / "b" / "part-0.jsonl").lstrip("/")
    store.put(key, b"answers")
    staged = store.stage(f"{key}.staged")
    store.publish(f"{key}.staged", store.write_staged(f"{key}.staged", staged, [b"answers"]))

    assert [mode(path) for path in (data.data_dir / "objects").rglob("*")] == [0o700, 0o700, 0o600]
    assert [mode(path) for path in (tmp_path / "out" / "a", tmp_path / "out" / "a" / "b")] == [0o755, 0o755]
    assert [mode(path) for path in (tmp_path / "out" / "a" / "b").iterdir()] == [0o644, 0o644]


def test_children_make_outputs_as_the_first_process_was_started_to_unless_an_operator_says_how(
    data: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.umask(0o027)
    keep_files_private(data)
    keep_files_private(data)  # a child inherits the environment, and the umask of its parent
    assert LocationSettings(_env_file=None).output_umask == 0o027

    monkeypatch.setenv("NIGHTSHIFT_OUTPUT_UMASK", "007")
    keep_files_private(data)
    assert LocationSettings(_env_file=None).output_umask == 0o007


def test_the_access_list_of_a_folder_is_not_widened(tmp_path: Path) -> None:
    """A folder's access list knows no umask, and opened its files to a group."""
    store = DirectoryStore(tmp_path, umask=0o022)
    os.umask(0o007)  # as a list that lets the group write
    store.put("a/b", b"")

    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o770, 0o660)
