"""Cron expressions in local time: the nights on which clocks change, and expressions that are none."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from nightshift.errors import InvalidRequest
from nightshift.schedules.cron import Cron, cron_of

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def cron(text: str, zone: str = "UTC") -> Cron:
    return cron_of(text, ZoneInfo(zone), NEW_YEAR)


def local(text: str, zone: str, day: str, count: int) -> list[str]:
    """The first instants from a local day on, by its clock and its offset from UTC."""
    begins = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) - timedelta(seconds=1)
    instants = islice(cron(text, zone).after(begins), count)
    return [f"{instant.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for instant in instants]


@pytest.mark.parametrize(
    ("zone", "text", "day", "instants"),
    [
        # A time that does not exist comes at the jump.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28", ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]),
        ("America/New_York", "30 2 * * *", "2026-03-07", ["07 02:30 -0500", "08 03:00 -0400"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03", ["03 02:15 +1030", "04 02:30 +1100"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-03-21", ["21 02:30 +0000", "22 03:00 +0100"]),
        ("Africa/Cairo", "30 0 * * *", "2026-04-23", ["23 00:30 +0200", "24 01:00 +0300", "25 00:30 +0300"]),
        # A time that exists twice comes once, the first time.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
        ("America/New_York", "30 1 * * *", "2026-11-01", ["01 01:30 -0400", "02 01:30 -0500"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05", ["05 01:45 +1100", "06 01:45 +1030"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-02-15", ["15 02:30 +0100", "16 02:30 +0000"]),
        ("UTC", "30 2 * * *", "2026-03-29", ["29 02:30 +0000", "30 02:30 +0000"]),
    ],
)
def test_a_daily_time_comes_once_on_the_nights_that_clocks_change(
    zone: str, text: str, day: str, instants: list[str]
) -> None:
    assert local(text, zone, day, len(instants)) == instants


@pytest.mark.parametrize("text", ["30 2 * * *", "0 0 * * 1-5", "0 12 29 2 *"])
def test_a_plan_with_one_time_of_the_day_is_daily(text: str) -> None:
    assert cron(text, "Europe/Berlin").is_daily(NEW_YEAR)


@pytest.mark.parametrize("text", ["0 1,13 * * *", "*/15 3 1 * *", "0 6-22 * * 1"])
@pytest.mark.parametrize("hour", [0, 7, 18])
def test_a_plan_with_more_is_not_whatever_the_time_is(text: str, hour: int) -> None:
    assert not cron(text, "Europe/Berlin").is_daily(NEW_YEAR + timedelta(hours=hour))


def test_every_quarter_of_an_hour_is_a_real_one() -> None:
    begins = datetime(2026, 10, 25, 0, tzinfo=UTC)  # Berlin's clocks go back at 1:00 UTC
    quarters = list(islice(cron("*/15 * * * *", "Europe/Berlin").after(begins), 12))

    assert {later - earlier for earlier, later in pairwise(quarters)} == {timedelta(minutes=15)}


@pytest.mark.parametrize("text", ["*/15 2 * * *", "45 * * * *", "7 */2 * * *", "*/20 0-3 * * *"])
@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "Europe/Berlin", "Antarctica/Troll", "America/Nuuk"])
def test_what_begins_with_a_star_comes_whenever_the_clock_shows_it(zone: str, text: str) -> None:
    known, minute = CronSim(text, NEW_YEAR), timedelta(minutes=1)
    for change in _changes(zone):
        moments = [change + minutes * minute for minutes in range(-360, 361)]
        clocks = [moment.astimezone(ZoneInfo(zone)) for moment in moments]
        shown = [
            moment
            for moment, clock in zip(moments, clocks, strict=True)
            if clock.minute in known.minutes and clock.hour in known.hours
        ]
        assert cron(text, zone).newest(moments[0], moments[-1], 100) == shown


def test_the_search_begins_where_it_is_asked_to_within_an_hour_that_comes_twice() -> None:
    second_time = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 2:10 in Berlin, for the second time

    first = cron("30 2 * * *", "Europe/Berlin").first_after(second_time)

    assert first == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_a_time_that_is_skipped_before_midnight_is_the_run_of_that_day() -> None:
    nuuk = cron("30 23 * * *", "America/Nuuk")  # on Saturday, its clocks go from 23:00 to 0:00
    instants = nuuk.newest(datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 30, 12, tzinfo=UTC), 9)

    assert [f"{instant.astimezone(nuuk.zone):%d %H:%M}" for instant in instants] == ["29 00:00", "29 23:30"]
    assert [nuuk.local_date(instant) for instant in instants] == ["2026-03-28", "2026-03-29"]


@cache
def _changes(zone: str) -> list[datetime]:
    """The next two instants at which a zone's clocks change; none for most zones."""
    return list(islice(_every_change(ZoneInfo(zone)), 2))


def _every_change(zone: ZoneInfo) -> Iterator[datetime]:
    at, step = NEW_YEAR, timedelta(hours=12)
    while at < NEW_YEAR + timedelta(days=730):
        before, after = at, at + step
        offset = at.astimezone(zone).utcoffset()
        while after.astimezone(zone).utcoffset() != offset and after - before > timedelta(seconds=1):
            middle = before + (after - before) / 2
            before, after = (
                (middle, after) if middle.astimezone(zone).utcoffset() == offset else (before, middle)
            )
        if after.astimezone(zone).utcoffset() != offset:
            yield after.replace(microsecond=0)
        at += step


ZONES = sorted(zone for zone in available_timezones() if "/" in zone or zone == "UTC")


@given(zone=st.sampled_from(ZONES), hour=st.integers(0, 23), minute=st.integers(0, 59))
def test_a_daily_plan_has_one_run_a_local_day_around_every_change_of_clocks(
    zone: str, hour: int, minute: int
) -> None:
    for change in _changes(zone) or [NEW_YEAR + timedelta(days=30)]:
        check_one_run_a_day(cron(f"{minute} {hour} * * *", zone), change)


def test_no_zone_has_a_change_of_clocks_that_adds_or_takes_a_run() -> None:
    for zone in ZONES:
        for change in _changes(zone):
            for minutes in (-90, -60, -45, -30, -15, 0, 15, 30, 60, 90):
                at = change.astimezone(ZoneInfo(zone)).replace(tzinfo=None) + timedelta(minutes=minutes)
                check_one_run_a_day(cron(f"{at.minute} {at.hour} * * *", zone), change)


def check_one_run_a_day(daily: Cron, change: datetime) -> None:
    around = timedelta(days=3)
    instants = daily.newest(change - around, change + around, 100)
    days = [date.fromisoformat(daily.local_date(instant)).toordinal() for instant in instants]
    assert len(days) >= 5
    assert days == list(range(days[0], days[0] + len(days))), (daily, change)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("* * * * * *", "five fields"),
        ("30 1 * *", "five fields"),
        ("", "five fields"),
        ("@daily", "five fields"),
        ("0 0 31 2 *", "never comes"),
        ("0 0 31 4,6 *", "never comes"),
        ("60 1 * * *", "'60' in '60 1 * * *' is no minute"),
        ("0 24 * * *", "'24' in '0 24 * * *' is no hour"),
        ("0 0 32 * *", "'32' in '0 0 32 * *' is no day of month"),
        ("0 0 * 13 *", "'13' in '0 0 * 13 *' is no month"),
        ("0 0 * * 8", "'8' in '0 0 * * 8' is no day of week"),
        ("*/0 * * * *", "no minute"),
        ("5-1 * * * *", "no minute"),
        ("0 0 * * 1#9", "no day of week"),
        ("0" * 5000 + " 0 * * *", "five fields"),
    ],
)
def test_what_is_no_cron_expression_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cron(text)

    assert said in refused.value.message
    assert refused.value.code == "invalid_cron"


@given(st.text("0123456789*/,-#LWMON ", max_size=20))
def test_any_text_is_a_cron_expression_or_is_refused(text: str) -> None:
    try:
        known = cron(text)
    except InvalidRequest:
        return
    assert known.first_after(NEW_YEAR) is not None


def test_a_leap_day_is_waited_for() -> None:
    assert cron("0 0 29 2 *").first_after(NEW_YEAR) == datetime(2028, 2, 29, tzinfo=UTC)


def test_the_newest_instants_are_those_before_the_last_however_many_there_were() -> None:
    minutely = cron("* * * * *")

    newest = minutely.newest(NEW_YEAR, datetime(2027, 1, 1, tzinfo=UTC), 3)

    assert newest == [datetime(2026, 12, 31, 23, minute, tzinfo=UTC) for minute in (58, 59)] + [
        datetime(2027, 1, 1, tzinfo=UTC)
    ]


def test_the_first_and_the_last_instant_count() -> None:
    daily = cron("0 1 * * *")
    first, last = datetime(2026, 1, 5, 1, tzinfo=UTC), datetime(2026, 1, 7, 1, tzinfo=UTC)

    assert daily.newest(first, last, 9) == [first, datetime(2026, 1, 6, 1, tzinfo=UTC), last]
    assert daily.newest(last, last - timedelta(seconds=1), 9) == []
