"""Time zones are those of the IANA database, and nothing else is read by their name."""

import pytest

from nightshift.errors import InvalidRequest
from nightshift.schedules.zones import zone_named


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_a_zone_of_the_database_is_known(name: str) -> None:
    assert zone_named(name).key == name


@pytest.mark.parametrize(
    "name", ["", "Europe", "localtime", "../etc/localtime", "/etc/localtime", "CEST", "europe/berlin", "a\0b"]
)
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        zone_named(name)
    assert refused.value.code == "unknown_time_zone"


def test_a_misspelt_zone_is_answered_with_the_one_like_it() -> None:
    with pytest.raises(InvalidRequest, match="such as Europe/Berlin"):
        zone_named("Europe/Berln")
