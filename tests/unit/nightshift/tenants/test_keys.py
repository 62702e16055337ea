"""API keys: well-formed, checked without being kept, refused when mistyped, expired or revoked."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.tenants.keys import digest, key_id, new_key
from tests.helpers.fakes import STARTS_AT as NOW
from tests.helpers.fakes import an_api_key

SECOND = timedelta(seconds=1)


def test_a_key_carries_its_public_id() -> None:
    key = new_key()

    assert key.startswith("ns_live_")
    assert len(key) == len("ns_live_") + 8 + 1 + 32 + 6
    assert key_id(key) == key[8:16]


def test_no_two_keys_are_alike() -> None:
    assert len({new_key() for _ in range(100)}) == 100


@given(st.data())
def test_a_mistyped_key_is_none_of_ours(data: st.DataObject) -> None:
    key = new_key()
    place = data.draw(st.integers(0, len(key) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda letter: letter != key[place]))

    assert key_id(key[:place] + other + key[place + 1 :]) is None


@pytest.mark.parametrize(
    "text", ["", "ns_live_", "sk-abc", "ns_live_" + "a" * 47, "ns_live_ü" + "a" * 46, "☂" * 55]
)
def test_what_was_never_a_key_is_none_of_ours(text: str) -> None:
    assert key_id(text) is None


def test_a_key_that_was_cut_off_or_runs_on_is_none_of_ours() -> None:
    key = new_key()

    assert key_id(key[:-1]) is None
    assert key_id(key + "x") is None
    assert key_id(" " + key) is None


def test_the_stored_key_admits_the_key_and_no_other() -> None:
    key = new_key()
    stored = an_api_key(key)

    assert stored.admits(key, NOW)
    assert not stored.admits(new_key(), NOW)
    assert not stored.admits("", NOW)


def test_the_stored_key_does_not_contain_the_key() -> None:
    key = new_key()

    assert key not in repr(an_api_key(key))
    assert digest(key) == an_api_key(key).key_sha256


def test_an_expired_key_is_refused_from_its_last_moment_on() -> None:
    key = new_key()
    stored = an_api_key(key, expires_at=NOW)

    assert stored.admits(key, NOW - SECOND)
    assert not stored.admits(key, NOW)


def test_a_revoked_key_is_refused() -> None:
    key = new_key()

    assert not an_api_key(key, revoked_at=NOW - SECOND).admits(key, NOW)
