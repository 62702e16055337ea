"""Secrets that must be read again, and the key that is not in the database."""

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nightshift.errors import ConfigurationError
from nightshift.tenants.vault import KEY_FILE, Vault, open_vault


def open_at(data_dir: Path, secret_key: str = "") -> Vault:
    return open_vault(secret_key, data_dir)


def test_what_was_encrypted_can_be_read_with_the_same_key_only_and_as_it_was() -> None:
    token = Vault("a long secret key").encrypt("whsec_ünïcode")

    assert b"whsec" not in token
    assert Vault("a long secret key").decrypt(token) == "whsec_ünïcode"
    with pytest.raises(ConfigurationError, match="NIGHTSHIFT_SECRET_KEY") as raised:
        Vault("another key").decrypt(token)
    assert raised.value.param == "SECRET_KEY"
    with pytest.raises(ConfigurationError):
        Vault("a long secret key").decrypt(token[:20] + bytes([token[20] ^ 1]) + token[21:])


def test_the_key_is_made_on_first_use_for_its_owner_only(tmp_path: Path) -> None:
    data_dir = tmp_path / "made" / "on demand"
    token = open_at(data_dir).encrypt("secret")

    assert stat.S_IMODE((data_dir / KEY_FILE).stat().st_mode) == 0o600
    assert open_at(data_dir).decrypt(token) == "secret"
    assert [path.name for path in data_dir.iterdir()] == [KEY_FILE]


def test_the_operators_key_goes_before_the_file(tmp_path: Path) -> None:
    open_at(tmp_path)
    token = open_at(tmp_path, "from the environment").encrypt("secret")

    assert Vault("from the environment").decrypt(token) == "secret"


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    start, count = threading.Barrier(8), 8

    def open_together() -> Vault:
        start.wait(timeout=30)
        return open_at(tmp_path)

    with ThreadPoolExecutor(count) as pool:
        vaults = [future.result() for future in [pool.submit(open_together) for _ in range(count)]]

    token = vaults[0].encrypt("secret")
    assert [vault.decrypt(token) for vault in vaults] == ["secret"] * count


def test_a_key_that_is_there_is_only_read(tmp_path: Path) -> None:
    """A container may mount its key on a directory it cannot write to."""
    (tmp_path / KEY_FILE).write_text("mounted\n")
    before = tmp_path.stat().st_mtime_ns

    token = open_at(tmp_path).encrypt("secret")

    assert Vault("mounted").decrypt(token) == "secret"
    assert tmp_path.stat().st_mtime_ns == before


def test_an_empty_key_is_not_a_key(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).touch()

    with pytest.raises(ConfigurationError, match="restore it from a backup"):
        open_at(tmp_path)
