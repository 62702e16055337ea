"""Checks of this machine: its disks, its limits, its ports."""

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import httpx

from nightshift.cli.doctor.examination import Finding, Status, error, ok, skipped, warning
from nightshift.cli.doctor.site import Site

GIB: Final = 1024**3
DISK_FREE_MIN_BYTES: Final = 1 * GIB  # results, logs and the queue's log grow; a full disk stops all of it
DISK_FREE_LOW_SHARE: Final = 0.05
INODES_FREE_MIN: Final = 1_000
INODES_FREE_LOW_SHARE: Final = 0.02
FILES_MIN: Final = 256  # the API alone keeps 64 connections to Redis and a pool to the database
FILES_LOW: Final = 1_024  # every open stream takes two
FILES_USED_HIGH_SHARE: Final = 0.9
FILE_NUMBERS: Final = Path("/proc/sys/fs/file-nr")
ANSWER_TIMEOUT_S: Final = 3.0

_RAISE_LIMIT: Final = (
    "raise it before the service starts: `ulimit -n 65536`, LimitNOFILE= of systemd, `ulimits:` in compose"
)

StatVfs = Callable[[Path], os.statvfs_result]


def look_at_directory(site: Site) -> Finding:
    """The data directory can be written to."""
    path = site.data.data_dir
    existing = _existing(path)
    if not os.access(existing, os.W_OK):
        return error(str(path), f"{existing} cannot be written to by this user: change its owner or mode")
    return ok(f"{path} can be written to" if path.exists() else f"{path} can be made")


def look_at_space(site: Site, statvfs: StatVfs = os.statvfs) -> Finding:
    """Every disk that the service writes to has room: the finding is that of the worst."""
    return max((_space(place, statvfs(place)) for place in _places(site)), key=_badness)


def look_at_inodes(site: Site, statvfs: StatVfs = os.statvfs) -> Finding:
    """Inodes can run out before the bytes do: segments are many small files."""
    for place in _places(site):
        disk = statvfs(place)
        if not disk.f_files:
            continue  # made as they are needed, by btrfs for example
        detail = f"{place}: {disk.f_favail} of {disk.f_files} inodes are free"
        figures = {"inodes_free": disk.f_favail}
        if disk.f_favail < INODES_FREE_MIN:
            return error(
                detail, "delete small files there, or make the file system anew with more", **figures
            )
        if disk.f_favail < disk.f_files * INODES_FREE_LOW_SHARE:
            return warning(detail, "delete small files there before none are left", **figures)
    return ok(f"enough are free ({_listed(_places(site))})")


def look_at_open_files(
    limit: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    file_numbers: Path = FILE_NUMBERS,
) -> Finding:
    """A process may have enough files and connections open, and so may this machine."""
    allowed = limit()
    with suppress(OSError, ValueError):
        used, _, most = map(int, file_numbers.read_text().split())
        if used >= most * FILES_USED_HIGH_SHARE:
            return error(
                f"this machine has {used} of {most} files open",
                "find the process that leaks them (`lsof`), or raise fs.file-max",
                files_max=allowed,
            )
    if allowed == resource.RLIM_INFINITY:
        return ok("a process may have any number of files open")
    detail = f"a process may have {allowed} files open"
    if allowed < FILES_MIN:
        return error(detail, f"the API needs at least {FILES_MIN}: {_RAISE_LIMIT}", files_max=allowed)
    if allowed < FILES_LOW:
        return warning(
            detail, f"with many clients the API may need {FILES_LOW}: {_RAISE_LIMIT}", files_max=allowed
        )
    return ok(detail, files_max=allowed)


def look_at_metrics_ports(site: Site) -> Finding:
    """The ports on which the scheduler and the worker serve metrics are free, or those of ours."""
    ports = {
        "NIGHTSHIFT_SCHEDULER_METRICS_PORT": site.scheduler.scheduler_metrics_port,
        "NIGHTSHIFT_WORKER_METRICS_PORT": site.worker.worker_metrics_port,
    }
    chosen = {name: port for name, port in ports.items() if port}
    if not chosen:
        return skipped("no metrics port is set: only the API serves metrics, on its own port")
    if len(set(chosen.values())) < len(chosen):
        return error(f"{' and '.join(chosen)} are both {min(chosen.values())}", "give each a port of its own")
    states = {f"{port} ({name})": _state_of(port) for name, port in chosen.items()}
    if taken := [port for port, state in states.items() if state == "taken"]:
        return error(f"port {_listed(taken)} is taken by another program", "choose another port, or end it")
    return ok("; ".join(f"{port} is {state}" for port, state in states.items()))


def _state_of(port: int) -> str:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_TIMEOUT_S, trust_env=False)
    except httpx.ConnectError:
        return "free"
    except httpx.TransportError:
        return "taken"
    return "serving metrics" if "nightshift_" in answer.text else "taken"


def _space(place: Path, disk: os.statvfs_result) -> Finding:
    free_bytes, total_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    detail = f"{place}: {free_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB are free"
    figures = {"bytes_free": free_bytes}
    if free_bytes < DISK_FREE_MIN_BYTES:
        return error(detail, "make room: at least 1 GiB should be free", **figures)
    if free_bytes < total_bytes * DISK_FREE_LOW_SHARE:
        return warning(detail, "make room before it is full: then nothing more is accepted", **figures)
    return ok(detail, **figures)


def _badness(finding: Finding) -> tuple[int, float]:
    rank = (Status.OK, Status.WARNING, Status.ERROR).index(finding.status)
    return rank, -finding.figures["bytes_free"]


def _places(site: Site) -> Sequence[Path]:
    """The existing directories that the service writes to, one of each file system."""
    storage, database = site.data.resolved_storage_url, site.data.resolved_database_url
    wanted = [site.data.data_dir]
    if storage.startswith("file://"):
        wanted.append(Path(unquote(storage.removeprefix("file://"))))
    if database.startswith("sqlite") and (path := database.partition(":///")[2]):
        wanted.append(Path(path))
    places: dict[int, Path] = {}
    for existing in map(_existing, wanted):
        places.setdefault(existing.stat().st_dev, existing)
    return list(places.values())


def _existing(path: Path) -> Path:
    """The path, or the directory in which it would be made."""
    absolute = path.expanduser().absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.is_dir())


def _listed(things: Sequence[object]) -> str:
    return ", ".join(map(str, things))
