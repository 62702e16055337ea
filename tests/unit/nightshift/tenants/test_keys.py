"""API keys: well-formed, checked without being kept, refused when mistyped, expired or revoked."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.tenants.keys import digest, key_id, new_key
from tests.helpers.fakes import STARTS_AT as NOW
from tests.helpers.fakes import an_api_key

SECOND = timedelta(seconds=1)
KEY = new_key()


def test_a_key_carries_its_public_id_and_no_two_are_alike() -> None:
    key = new_key()

    assert key.startswith("ns_live_")
    assert len(key) == len("ns_live_") + 8 + 1 + 32 + 6
    assert key_id(key) == key[8:16]
    assert len({new_key() for _ in range(100)}) == 100


@given(st.data())
def test_a_mistyped_key_is_none_of_ours(data: st.DataObject) -> None:
    key = new_key()
    place = data.draw(st.integers(0, len(key) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda letter: letter != key[place]))

    assert key_id(key[:place] + other + key[place + 1 :]) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "ns_live_", "sk-abc", "ns_live_" + "a" * 47, "ns_live_ü" + "a" * 46, "☂" * 55),
        *(KEY[:-1], KEY + "x", " " + KEY),
    ],
    ids=range(9),  # keys are random
)
def test_what_is_no_whole_key_is_none_of_ours(text: str) -> None:
    assert key_id(text) is None


def test_the_stored_key_admits_the_key_and_no_other_and_does_not_contain_it() -> None:
    stored = an_api_key(KEY)

    assert stored.admits(KEY, NOW)
    assert not stored.admits(new_key(), NOW)
    assert not stored.admits("", NOW)
    assert KEY not in repr(stored)
    assert digest(KEY) == stored.key_sha256


def test_an_expired_key_is_refused_from_its_last_moment_on_and_a_revoked_one_at_once() -> None:
    stored = an_api_key(KEY, expires_at=NOW)

    assert stored.admits(KEY, NOW - SECOND)
    assert not stored.admits(KEY, NOW)
    assert not an_api_key(KEY, revoked_at=NOW - SECOND).admits(KEY, NOW)
