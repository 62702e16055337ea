"""Everything that is installed and run is named by its content: hashes of packages, digests of images."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENTS = [
    *(ROOT / "requirements.txt", ROOT / "tests/e2e/examples/airflow.txt"),
    *sorted((ROOT / "infra/requirements").glob("*.txt")),
]
PINNED = re.compile(r"@sha256:[0-9a-f]{64}$")


def entries(path: Path) -> list[tuple[str, list[str]]]:
    """Each requirement's own line, and the hashes below it."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if not line.startswith(" ")]
    return [
        (lines[at], [line.strip(" \\") for line in lines[at + 1 : end]])
        for at, end in pairwise([*starts, len(lines)])
    ]


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_requirement_has_one_version_and_hashes(path: Path) -> None:
    requirements = entries(path)
    assert requirements
    for line, hashes in requirements:
        assert re.match(r"[a-z0-9_.-]+==[^ ]+( ; .*)? \\$", line), line
        assert hashes, line
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", hash_) for hash_ in hashes), line


def test_the_images_have_the_versions_that_the_tests_have() -> None:
    tested = {
        line.split()[0]
        for path in (ROOT / "requirements.txt", ROOT / "infra/requirements/torch-cpu.txt")
        for line, _ in entries(path)
    }
    for name in ("api", "scheduler", "upstream", "worker-cpu"):
        installed = {line.split()[0] for line, _ in entries(ROOT / f"infra/requirements/{name}.txt")}
        assert installed - tested == set(), name


def test_what_is_locked_suits_the_python_of_debian() -> None:
    """redis needs async-timeout before 3.11.3, and a lock made with a later Python would lack it."""
    locked = [line for line, _ in entries(ROOT / "requirements.txt")]
    assert any(
        line.startswith("async-timeout==") and "python_full_version < '3.11.3'" in line for line in locked
    )


def test_images_of_others_are_named_by_digest() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    images = [service["image"] for service in services.values()]
    for dockerfile in sorted((ROOT / "infra/docker").glob("*.Dockerfile")):
        images += re.findall(r"^FROM (\S+)", dockerfile.read_text(), re.MULTILINE)
    of_others = [image for image in images if not image.startswith("nightshift-")]
    assert len(of_others) == 13, "five services, two stages of four images"
    assert [image for image in of_others if not PINNED.search(image)] == []
