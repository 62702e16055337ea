"""The support bundle: what a supporter needs to know of an installation, and no secret of it.

    nightshift-support/  contents.json          what is in it, and what could not be collected
                         checks.json            as `nightshift doctor --json`
                         settings.json          values without passwords, and the names of other variables
                         versions.json  schema.json  queue.json  workers.json  figures.json  readyz.json
                         metrics/*.txt          as the processes serve them
                         logs/*.log             the last lines of each

Two things keep secrets out: what is collected holds none by its kind (no job, no request, no key), and
whatever is written passes the masker.
"""

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from nightshift.doctor import collecting
from nightshift.doctor.findings import Result
from nightshift.doctor.running import Hide, within
from nightshift.doctor.site import Site
from nightshift.errors import ConfigurationError

FOLDER: Final = "nightshift-support"
ENTRY_BYTES_MAX: Final = 1024 * 1024
BUNDLE_BYTES_MAX: Final = 16 * 1024 * 1024  # before it is packed
_CUT: Final = "\n[cut here: the bundle's limit]\n"


@dataclass(frozen=True)
class Entry:
    """`collect` returns its text; None: there is nothing to tell."""

    name: str
    collect: Callable[[], str | None]


@contextmanager
def new_bundle(path: Path) -> Iterator[IO[bytes]]:
    """A new file that only this user can read; removed if it is not written to its end.

    Raises ConfigurationError if there is something of that name, a link too, or it cannot be made.
    """
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError as error:
        raise ConfigurationError(f"{path} exists already: name another file", param="bundle") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}", param="bundle") from error
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_bundle(
    file: IO[bytes], site: Site, results: Sequence[Result], hide: Hide, timeout_s: float
) -> None:
    """`timeout_s`: for each of its parts; one that hangs is left out."""
    contents: dict[str, str] = {}
    left = BUNDLE_BYTES_MAX
    with tarfile.open(fileobj=file, mode="w:gz") as bundle:
        for entry in entries_of(site, results):
            text, problem = _collected(entry, timeout_s)
            if text is None:
                contents[entry.name] = problem
                continue
            data = _limited(hide(text), min(ENTRY_BYTES_MAX, left))
            left -= len(data)
            _add(bundle, entry.name, data)
            contents[entry.name] = f"{len(data)} bytes"
        _add(bundle, "contents.json", json.dumps(contents, indent=2).encode())


def entries_of(site: Site, results: Sequence[Result]) -> Iterator[Entry]:
    """The small ones first: logs are cut where the bundle would grow too large."""
    yield Entry("checks.json", lambda: _json([result.to_json() for result in results]))
    yield Entry("versions.json", lambda: _json(collecting.versions()))
    yield Entry("settings.json", lambda: _json(collecting.settings()))
    for name, collect in (
        ("schema.json", collecting.schema),
        ("queue.json", collecting.queue),
        ("workers.json", collecting.workers),
        ("figures.json", collecting.figures),
    ):
        yield Entry(name, lambda collect=collect: _json(collect(site)))  # type: ignore[misc]
    yield Entry("readyz.json", lambda: collecting.fetched(f"{collecting.server_of(site)}/readyz"))
    for name, url in collecting.metrics_addresses(site).items():
        yield Entry(f"metrics/{name}.txt", lambda url=url: collecting.fetched(url))  # type: ignore[misc]
    for path in collecting.log_files(site):
        yield Entry(f"logs/{path.name}", lambda path=path: collecting.last_lines(path))  # type: ignore[misc]


def _collected(entry: Entry, timeout_s: float) -> tuple[str | None, str]:
    """Its text, or why there is none."""

    def collect() -> tuple[str | None, str]:
        try:
            return entry.collect(), "there is none"
        except Exception as error:  # noqa: BLE001 the rest is worth having
            return None, f"could not be collected: {type(error).__name__}"

    return within(timeout_s, collect) or (None, f"gave no answer within {timeout_s:g} s")


def _limited(text: str, bytes_max: int) -> bytes:
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data
    cut = _CUT.encode()
    return data[: max(0, bytes_max - len(cut))] + cut if bytes_max > len(cut) else b""


def _add(bundle: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(f"{FOLDER}/{name}")
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    bundle.addfile(member, io.BytesIO(data))


def _json(data: object) -> str | None:
    return None if data is None else json.dumps(data, indent=2, ensure_ascii=False, default=str)
