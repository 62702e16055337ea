"""A window is hours of the day in a zone: it may cross midnight, and lasts as that night's clocks say."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.errors import InvalidRequest
from nightshift.schedules.windows import Window, check_length, check_opens_in_time, parse_window

HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def opening_and_length(window: str, after: str) -> tuple[datetime, timedelta]:
    """The next opening after a time, UTC, and how long it is open then."""
    parsed = parse_window(window)
    opens = parsed.next_opening(utc(after))
    closes = parsed.closes_at(opens)
    assert closes is not None
    return opens, closes - opens


# -- the two nights --


@pytest.mark.parametrize(
    ("window", "after", "opens", "hours"),
    [
        ("01:00-06:00", "2026-11-27 12:00", "2026-11-28 01:00", 5.0),
        ("22:00-06:00 UTC", "2026-11-27 12:00", "2026-11-27 22:00", 8.0),
        # An ordinary night, then clocks forward on 29 March and back on 25 October.
        ("01:00-06:00 Europe/Berlin", "2026-11-27 12:00", "2026-11-28 00:00", 5.0),
        ("01:00-06:00 Europe/Berlin", "2026-03-28 12:00", "2026-03-29 00:00", 4.0),
        ("01:00-06:00 Europe/Berlin", "2026-10-24 12:00", "2026-10-24 23:00", 6.0),
        # 02:30 does not exist on the first night and happens twice on the second.
        ("02:30-06:00 Europe/Berlin", "2026-03-28 12:00", "2026-03-29 01:00", 3.0),
        ("02:30-06:00 Europe/Berlin", "2026-10-24 12:00", "2026-10-25 00:30", 4.5),
        ("01:00-02:30 Europe/Berlin", "2026-03-28 12:00", "2026-03-29 00:00", 1.0),
        ("01:00-02:30 Europe/Berlin", "2026-10-24 12:00", "2026-10-24 23:00", 2.5),
        ("22:00-04:00 America/New_York", "2026-03-07 12:00", "2026-03-08 03:00", 5.0),
        ("22:00-04:00 America/New_York", "2026-10-31 12:00", "2026-11-01 02:00", 7.0),
        # Clocks are changed by half an hour: at 02:00 to 02:30 on 4 October, to 01:30 on 5 April.
        ("01:00-05:00 Australia/Lord_Howe", "2026-10-03 02:00", "2026-10-03 14:30", 3.5),
        ("01:00-05:00 Australia/Lord_Howe", "2026-04-04 02:00", "2026-04-04 14:00", 4.5),
        # An hour back for Ramadan, on 15 February at 03:00; forward on 22 March at 02:00.
        ("01:00-06:00 Africa/Casablanca", "2026-02-14 12:00", "2026-02-15 00:00", 6.0),
        ("01:00-06:00 Africa/Casablanca", "2026-03-21 12:00", "2026-03-22 01:00", 4.0),
    ],
)
def test_a_window_opens_by_the_clocks_of_its_zone_and_lasts_as_long_as_they_say(
    window: str, after: str, opens: str, hours: float
) -> None:
    assert opening_and_length(window, after) == (utc(opens), hours * HOUR)


def test_a_night_that_has_nothing_of_the_window_is_left_out() -> None:
    # 02:00 to 03:00 do not exist in the night to the 29th: the next is that to the 30th, by summer time.
    assert opening_and_length("02:00-03:00 Europe/Berlin", "2026-03-28 12:00") == (
        utc("2026-03-30 00:00"),
        HOUR,
    )


def test_a_day_that_a_zone_has_left_out_has_no_window() -> None:
    # Samoa went from 29 to 31 December 2011 at midnight.
    opens, length = opening_and_length("01:00-06:00 Pacific/Apia", "2011-12-29 18:00")
    assert opens.astimezone(ZoneInfo("Pacific/Apia")).date() == date(2011, 12, 31)
    assert length == 5 * HOUR


def test_its_end_is_no_part_of_a_window() -> None:
    window = parse_window("01:00-06:00")
    assert window.is_open(utc("2026-11-28 01:00"))
    assert window.is_open(utc("2026-11-28 05:59:59"))
    assert not window.is_open(utc("2026-11-28 06:00"))
    assert not window.is_open(utc("2026-11-28 00:59:59"))


def test_a_window_turns_at_its_end_while_it_is_open_and_else_at_its_opening() -> None:
    window = parse_window("22:00-06:00")
    assert window.turns_at(utc("2026-11-28 03:00")) == utc("2026-11-28 06:00")
    assert window.turns_at(utc("2026-11-28 06:00")) == utc("2026-11-28 22:00")


# -- every zone --


@st.composite
def windows(draw: st.DrawFn) -> Window:
    minutes = st.integers(0, 24 * 60 - 1)
    start, end = draw(st.tuples(minutes, minutes).filter(lambda both: both[0] != both[1]))
    zone = ZoneInfo(draw(st.sampled_from(sorted(available_timezones() - {"localtime"}))))
    return Window(time(*divmod(start, 60)), time(*divmod(end, 60)), zone)


def transitions(zone: ZoneInfo) -> list[datetime]:
    """The hours of two years in which clocks of the zone are changed."""
    hours = [utc("2026-01-01") + hour * HOUR for hour in range(0, 2 * 365 * 24, 6)]
    offsets = [at.astimezone(zone).utcoffset() for at in hours]
    return [at for at, before, after in zip(hours, offsets, offsets[1:], strict=False) if before != after]


@given(windows(), st.data())
def test_windows_follow_each_other_once_a_day_and_last_as_their_hours_say(
    window: Window, data: st.DataObject
) -> None:
    near = data.draw(st.sampled_from([utc("2026-06-15"), *transitions(window.zone)]))
    now = near + timedelta(minutes=data.draw(st.integers(-3 * 24 * 60, 24 * 60)))
    opens = window.next_opening(now)
    closes = window.closes_at(opens)
    assert closes is not None
    assert now < opens < closes
    assert window.is_open(closes - timedelta(seconds=1))
    assert opens - now < 3 * 24 * HOUR
    # An hour more or less, where the ends of two nights do not meet.
    is_ordinary = not window.is_open(closes)
    changed = abs((closes - opens) - timedelta(seconds=window.length_s))
    assert not is_ordinary or changed <= 2 * HOUR
    local = opens.astimezone(window.zone)
    shown = (local.hour, local.minute) == (window.start.hour, window.start.minute)
    is_jump = (opens - timedelta(seconds=1)).astimezone(window.zone).utcoffset() != local.utcoffset()
    assert shown or is_jump


@given(windows())
def test_a_window_is_read_as_it_is_written(window: Window) -> None:
    assert parse_window(str(window)) == window


@given(windows(), st.integers(0, 2 * 365 * 24 * 60))
def test_a_window_turns_after_now_and_is_until_then_what_it_is(window: Window, minute: int) -> None:
    now = utc("2026-01-01") + timedelta(minutes=minute)
    turns_at = window.turns_at(now)
    assert turns_at > now
    just_before = turns_at - timedelta(microseconds=1)
    assert window.is_open(just_before) == window.is_open(now)


@given(windows(), st.integers(0, 365 * 24 * 60), st.integers(0, 20 * 24 * 60))
def test_work_ends_once_the_window_was_open_for_as_long_as_it_takes(
    window: Window, minute: int, later: int
) -> None:
    now = utc("2026-01-01") + timedelta(minutes=minute)
    work = window.open_time(now, now + timedelta(minutes=later))
    ends_at = window.end_of(work, now)
    assert ends_at is not None
    assert window.open_time(now, ends_at) == work
    assert window.end_of(timedelta(days=3650), now) is None


def test_work_goes_on_night_after_night() -> None:
    window = parse_window("22:00-06:00")
    noon = utc("2026-11-28 12:00")
    assert window.open_time(noon, utc("2026-11-30 01:00")) == 11 * HOUR
    assert window.end_of(11 * HOUR, noon) == utc("2026-11-30 01:00")
    assert window.end_of(HOUR, utc("2026-11-28 23:30")) == utc("2026-11-29 00:30")


# -- bad input --


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no window such as 01:00-06:00"),
        ("60", "is no window such as"),
        ("01:00", "is no window such as"),
        ("8h", "is no window such as"),
        ("1-6", "is no window such as"),
        ("01:00-06:00 Europe/Berlin now", "is no window such as"),
        ("25:00-06:00", "25:00 is no time of the day"),
        ("22:00-24:00", "24:00 is no time of the day, 00:00 to 23:59; midnight is 00:00"),
        ("01:60-06:00", "01:60 is no time of the day"),
        ("06:00-06:00", "from 06:00 to 06:00 has no length"),
        ("01:00-06:00 Europe/Berln", "'Europe/Berln' is no time zone, such as Europe/Berlin"),
        ("01:00-06:00 CEST", "'CEST' is no time zone"),
    ],
)
def test_what_is_no_window_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_window(text)
    assert says in refused.value.message


def test_a_window_shorter_than_a_checkpoint_is_refused_with_both_lengths() -> None:
    with pytest.raises(InvalidRequest, match=r"lasts 60 s, which is shorter .* saved every 90 s"):
        check_length(parse_window("01:00-01:01"), checkpoint_s=90)
    check_length(parse_window("23:59-00:01"), checkpoint_s=90)


def test_work_that_ends_before_its_window_first_opens_is_refused_with_both_times() -> None:
    night, noon = parse_window("01:00-06:00 Europe/Berlin"), utc("2026-11-27 12:00")
    with pytest.raises(InvalidRequest) as refused:
        check_opens_in_time(night, noon + 12 * HOUR, noon)

    assert "2026-11-28 00:00:00Z, before" in refused.value.message
    check_opens_in_time(night, noon + 13 * HOUR, noon)
    check_opens_in_time(night, utc("2026-11-27 01:10"), utc("2026-11-27 01:00"))
