"""Files of others are those that are listed, unchanged, with their licences."""

import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LISTED = tomllib.loads((ROOT / "infra" / "vendored.toml").read_text())["file"]
FOLDERS = (
    ROOT / "api" / "page" / "static" / "vendor",
    ROOT / "tests" / "integration" / "api" / "page" / "browser" / "vendor",
)


def test_each_is_as_it_was_published() -> None:
    digests = {
        file["path"]: hashlib.sha256((ROOT / file["path"]).read_bytes()).hexdigest() for file in LISTED
    }

    assert digests == {file["path"]: file["sha256"] for file in LISTED}


def test_each_has_its_licence_and_none_is_unlisted() -> None:
    listed = {file[name] for file in LISTED for name in ("path", "licence_file")}
    kept = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in folder.rglob("*")
        if path.is_file()
    }

    assert kept == listed
