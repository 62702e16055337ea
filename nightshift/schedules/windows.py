"""Windows: hours of the day in a zone, such as `01:00-06:00 Europe/Berlin`, in which work may run.

A window may cross midnight. On the two nights on which clocks are changed it lasts as much more or less: an
hour that does not exist is no part of it, and one that happens twice is all of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from nightshift.errors import InvalidRequest
from nightshift.schedules.zones import zone_named

DEFAULT_ZONE: Final = "UTC"
MINUTES_A_DAY: Final = 24 * 60

SHOWN: Final = "%Y-%m-%d %H:%M:%SZ"  # UTC

_FORM: Final = re.compile(r"([0-9]{1,2}):([0-9]{2}) ?- ?([0-9]{1,2}):([0-9]{2})(?: +(\S+))?")
_DAYS_BEFORE: Final = 2  # an opening whose window may last until now: clocks may be set back over midnight
_NIGHTS_MAX: Final = 100  # looked at for the end of work


@dataclass(frozen=True)
class Window:
    """Wall-clock hours of every day. `end` is on the day after where it is not later than `start`."""

    start: time
    end: time
    zone: ZoneInfo

    def __str__(self) -> str:
        """The text that `parse_window` reads."""
        return f"{self.start:%H:%M}-{self.end:%H:%M} {self.zone.key}"

    @property
    def length_s(self) -> int:
        """Seconds that it lasts while no clocks are changed."""
        minutes = _minutes(self.end) - _minutes(self.start)
        return 60 * (minutes % MINUTES_A_DAY)

    def is_open(self, now: datetime) -> bool:
        return self.closes_at(now) is not None

    def closes_at(self, now: datetime) -> datetime | None:
        """The end of the window that is open, UTC; None: none is."""
        open_now = takewhile(lambda night: night[0] <= now, self._nights(now))
        return max((closes for _, closes in open_now), default=None)

    def next_opening(self, now: datetime) -> datetime:
        """The next time after `now` at which the window opens, UTC."""
        return next(opens for opens, _ in self._nights(now) if opens > now)

    def turns_at(self, now: datetime) -> datetime:
        """The next time at which it closes if it is open, or else at which it opens."""
        return self.closes_at(now) or self.next_opening(now)

    def open_time(self, since: datetime, until: datetime) -> timedelta:
        """The time for which it was open."""
        nights = takewhile(lambda night: night[0] < until, self._nights(since))
        return sum((min(closes, until) - max(opens, since) for opens, closes in nights), timedelta())

    def end_of(self, work: timedelta, now: datetime) -> datetime | None:
        """The end of work that goes on from `now` while it is open; None: after more than `_NIGHTS_MAX`."""
        for opens, closes in islice(self._nights(now), _NIGHTS_MAX):
            begins = max(opens, now)
            if work <= closes - begins:
                return begins + work
            work -= closes - begins
        return None

    def _nights(self, since: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The times at which it opens and closes, in order, from the first that closes after `since`. A night
        that has nothing of it is left out.
        """
        day = since.astimezone(self.zone).date() - timedelta(days=_DAYS_BEFORE)
        while True:
            opens, closes = self._of_day(day)
            if max(opens, since) < closes:
                yield opens, closes
            day += timedelta(days=1)

    def _of_day(self, day: date) -> tuple[datetime, datetime]:
        last_day = day if self.end > self.start else day + timedelta(days=1)
        return (
            _instant(datetime.combine(day, self.start), self.zone, fold=0),
            _instant(datetime.combine(last_day, self.end), self.zone, fold=1),
        )


def parse_window(text: str) -> Window:
    """The window in `01:00-06:00` (UTC) or `01:00-06:00 Europe/Berlin`. Raises InvalidRequest, which the
    caller gives its field.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(
            f"{text!r} is no window such as 01:00-06:00 or '22:00-06:00 Europe/Berlin': two times of the "
            "day, and a time zone if it is not UTC."
        )
    start, end = _time(match[1], match[2]), _time(match[3], match[4])
    if start == end:
        raise InvalidRequest(
            f"a window from {start:%H:%M} to {end:%H:%M} has no length; work that may run all day needs none."
        )
    return Window(start, end, zone_named(match[5] or DEFAULT_ZONE))


def check_length(window: Window, checkpoint_s: float) -> None:
    """Raises InvalidRequest for a window in which rows might never be saved. `checkpoint_s`: seconds between
    checkpoints.
    """
    if window.length_s < checkpoint_s:
        raise InvalidRequest(
            f"the window {window} lasts {window.length_s} s, which is shorter than a checkpoint: results are "
            f"saved every {checkpoint_s:g} s. Give a longer one."
        )


def check_opens_in_time(window: Window, ends_at: datetime, now: datetime) -> None:
    """Raises InvalidRequest if work that is submitted now would be ended before the window first opens."""
    if not window.is_open(now) and (opens_at := window.next_opening(now)) >= ends_at:
        raise InvalidRequest(
            f"the job would end at {ends_at:{SHOWN}}, before its window first opens, at {opens_at:{SHOWN}}: "
            "none of its rows would run. Give it more time."
        )


def _time(hour: str, minute: str) -> time:
    try:
        return time(int(hour), int(minute))
    except ValueError as error:
        advice = "; midnight is 00:00" if int(hour) == 24 else ""
        raise InvalidRequest(f"{hour}:{minute} is no time of the day, 00:00 to 23:59{advice}.") from error


def _minutes(at: time) -> int:
    return 60 * at.hour + at.minute


def _instant(local: datetime, zone: ZoneInfo, fold: int) -> datetime:
    """The moment at which clocks of the zone show this, the first time (fold 0) or the last (1), UTC. Where
    they never do, it is the moment at which they jump over it.
    """
    moment = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == local:
        return moment
    # PEP 495: within a gap, fold 1 counts with the later offset, and so is before the jump; fold 0 is after.
    before, after = (local.replace(tzinfo=zone, fold=side).astimezone(UTC) for side in (1, 0))
    offset = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=int((after - before).total_seconds()) // 2)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after
