"""Disks, limits and ports of this machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from nightshift.cli.doctor.checks import machine
from nightshift.cli.doctor.examination import Status
from nightshift.cli.doctor.site import Site
from nightshift.process.settings import DataSettings
from tests.faults.kit import metadata

GIB = 1024**3


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return Site(data=DataSettings(data_dir=tmp_path / "data"))


def a_disk(**fields: int) -> Callable[[Path], os.statvfs_result]:
    whole = {
        "f_frsize": 4096,
        "f_blocks": 25 << 20,
        "f_bavail": 20 << 20,
        "f_files": 10**6,
        "f_favail": 10**6,
    }
    disk = SimpleNamespace(**(whole | fields))
    return lambda path: disk  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("free_bytes", "status"),
    [(80 * GIB, Status.OK), (4 * GIB, Status.WARNING), (GIB // 2, Status.ERROR), (0, Status.ERROR)],
)
def test_room_on_the_disk_is_judged(site, free_bytes, status):
    finding = machine.look_at_space(site, a_disk(f_bavail=free_bytes // 4096))
    assert (finding.status, finding.figures["bytes_free"]) == (status, free_bytes)


@pytest.mark.parametrize(
    ("files", "free", "status"),
    [
        (10**6, 10**6, Status.OK),
        (10**6, 15_000, Status.WARNING),
        (10**6, 999, Status.ERROR),
        (10**6, 0, Status.ERROR),
        (0, 0, Status.OK),  # a file system without a table of inodes has enough
    ],
)
def test_inodes_are_judged_although_bytes_are_free(site, files, free, status):
    disk = a_disk(f_files=files, f_favail=free)
    assert machine.look_at_inodes(site, disk).status is status
    assert machine.look_at_space(site, disk).status is Status.OK


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real file system of 1 MiB and 16 inodes; only root may make one, and not everywhere."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=16", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_small_disk_is_seen_as_it_is(small_disk):
    site = Site(data=DataSettings(data_dir=small_disk / "data"))
    assert machine.look_at_space(site).status is Status.ERROR
    assert machine.look_at_inodes(site).status is Status.ERROR


def test_the_store_and_the_database_may_be_on_other_disks(site, tmp_path, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", "file:///proc/objects")
    elsewhere = Site(data=DataSettings(data_dir=tmp_path / "data"))
    places: list[Path] = []

    def statvfs(path: Path) -> os.statvfs_result:
        places.append(path)
        return a_disk()(path)

    machine.look_at_space(elsewhere, statvfs)
    assert places == [tmp_path, Path("/proc")]


def test_a_directory_that_cannot_be_written_to_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert machine.look_at_directory(Site(data=DataSettings(data_dir=tmp_path))).status is Status.ERROR


def test_the_limit_on_open_files_is_the_processes_own():
    """The check runs in a process that has these limits, one after the other."""
    code = (
        "import resource\nfrom nightshift.cli.doctor.checks import machine\n"
        "for limit in (20_000, 512, 64):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 20_000))\n"
        "    print(machine.look_at_open_files().status)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [Status.OK, Status.WARNING, Status.ERROR]


def test_a_machine_with_nearly_all_files_open_is_an_error(tmp_path):
    numbers = tmp_path / "file-nr"
    numbers.write_text("950\t0\t1000\n")
    assert machine.look_at_open_files(lambda: 20_000, numbers).status is Status.ERROR
    numbers.write_text("95\t0\t1000\n")
    assert machine.look_at_open_files(lambda: 20_000, numbers).status is Status.OK


def metrics_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheduler: int, worker: int) -> Status:
    monkeypatch.setenv("NIGHTSHIFT_SCHEDULER_METRICS_PORT", str(scheduler))
    monkeypatch.setenv("NIGHTSHIFT_WORKER_METRICS_PORT", str(worker))
    return machine.look_at_metrics_ports(Site(data=DataSettings(data_dir=tmp_path))).status


def test_a_metrics_port_is_free_or_ours_or_taken(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(machine, "ANSWER_TIMEOUT_S", 0.2)
        assert metrics_status(monkeypatch, tmp_path, port, 0) is Status.ERROR
    assert metrics_status(monkeypatch, tmp_path, port, 0) is Status.OK, "it is free now"
    with metadata.serving() as other:  # a web server that serves no metrics of ours
        port = int(other.url.rpartition(":")[2])
        assert metrics_status(monkeypatch, tmp_path, 0, port) is Status.ERROR
    assert metrics_status(monkeypatch, tmp_path, 9100, 9100) is Status.ERROR, "one port for two"
    assert metrics_status(monkeypatch, tmp_path, 0, 0) is Status.SKIPPED
