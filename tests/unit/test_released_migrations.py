"""A migration that was released never changes: databases that have it would lack what it makes from then on.

`migrations/SHA256SUMS` has a line for each; `cd migrations && sha256sum -c SHA256SUMS` checks it too.
"""

import hashlib
from pathlib import Path

import pytest

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def listed() -> dict[str, str]:
    """The digest of each migration by its path."""
    lines = (MIGRATIONS / "SHA256SUMS").read_text().splitlines()
    return {path: digest for digest, path in (line.split("  ") for line in lines)}


def present() -> dict[str, str]:
    return {
        str(path.relative_to(MIGRATIONS)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((MIGRATIONS / "versions").glob("*.py"))
    }


@pytest.mark.parametrize("path", sorted(listed()))
def test_a_released_migration_is_as_it_was(path: str) -> None:
    assert present().get(path) == listed()[path], (
        f"{path} was released: leave it, and write another migration"
    )


def test_every_migration_has_its_line() -> None:
    new = {path: digest for path, digest in present().items() if path not in listed()}

    lines = "\n".join(f"{digest}  {path}" for path, digest in new.items())
    assert not new, f"add to migrations/SHA256SUMS:\n{lines}"
