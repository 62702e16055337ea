"""A dump for each release, on each database: what an upgrade from it begins with."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
PROJECT: Final = FOLDER.parents[4] / "pyproject.toml"


def dump_of(release: str, database: str) -> Path:
    """The dump of a release on `sqlite` or `postgresql`."""
    return FOLDER / f"{release}.{database}.sql"


def dumped() -> Sequence[str]:
    """The releases that have a dump."""
    return sorted({path.name.removesuffix(".sqlite.sql") for path in FOLDER.glob("*.sqlite.sql")})


def this_release() -> str:
    release: str = tomllib.loads(PROJECT.read_text())["project"]["version"]
    return release
