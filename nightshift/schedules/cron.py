"""Times of a cron expression in a time zone, by the rules of Debian's cron(8).

A fixed time that does not exist on the night the clocks go forward comes at the jump; one that exists twice
on the night they go back comes once, the first time. Expressions whose minute or hour begins with `*` come
whenever the clock shows them: `*/15` comes every quarter of an hour.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from nightshift.errors import InvalidRequest, shortened

FIELDS: Final = ("minute", "hour", "day of month", "month", "day of week")
CHARS_MAX: Final = 100
INVALID: Final = "invalid_cron"
LOOK_BACK: Final = timedelta(hours=1)
BACK_MAX: Final = timedelta(hours=3)  # clocks go back by two at most: Antarctica/Troll

_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True)
class Cron:
    """A checked expression in its zone. Moments are aware; instants are UTC."""

    text: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The instants after this moment, in order, for the next fifty years or more."""
        begins = moment.astimezone(self.zone)
        if any(field.startswith("*") for field in self.text.split()[:2]):
            instants = self._real_times(begins.replace(tzinfo=None) - BACK_MAX)
        else:
            instants = (local.astimezone(UTC) for local in CronSim(self.text, begins))
        yield from (instant for instant in instants if instant > moment)

    def _real_times(self, begins: datetime) -> Iterator[datetime]:
        """The instants at which the clock shows a time of the expression, from this local time on: twice
        where it does so twice, and not at all where it never does.

        CronSim leaves such times out where clocks change by less than an hour.
        """
        second_times: deque[datetime] = deque()
        for local in CronSim(self.text, begins):
            first, second = (local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
            if first.astimezone(self.zone).replace(tzinfo=None) != local:
                continue
            while second_times and second_times[0] < first:
                yield second_times.popleft()
            yield first
            if second != first:
                second_times.append(second)

    def first_after(self, moment: datetime) -> datetime | None:
        return next(self.after(moment), None)

    def is_daily(self, moment: datetime) -> bool:
        """Whether no day has two of its times, by the next three."""
        dates = [self.local_date(instant) for instant in islice(self.after(moment), 3)]
        return len(set(dates)) == len(dates)

    def newest(self, first: datetime, until: datetime, limit: int) -> list[datetime]:
        """The last instants from `first` until `until`, both inclusive, in order: at most `limit`.

        However long ago `first` is, few more than `limit` instants are computed.
        """
        begin, back = first - _SECOND, LOOK_BACK
        while True:
            since = max(begin, until - back)
            newest = deque(takewhile(lambda instant: instant <= until, self.after(since)), maxlen=limit)
            if len(newest) == limit or since == begin:
                return list(newest)
            back *= 8

    def local_date(self, instant: datetime) -> str:
        """The local day that this instant is the run of: 2026-11-30.

        A time that the clock skips comes at the jump, which may be the first moment of the day after; it is
        the run of the day that lacks it.
        """
        local = instant.astimezone(self.zone)
        last = (instant - _SECOND).astimezone(self.zone)
        if local.utcoffset() == last.utcoffset() or self._names(local):
            return str(local.date())
        return str((last.replace(tzinfo=None) + _SECOND).date())

    def _names(self, local: datetime) -> bool:
        known = CronSim(self.text, local)
        return local.minute in known.minutes and local.hour in known.hours


def cron_of(text: str, zone: ZoneInfo, now: datetime) -> Cron:
    """The checked expression. Raises InvalidRequest, which the caller gives its field."""
    fields = text.split()
    if len(fields) != len(FIELDS) or len(text) > CHARS_MAX:
        raise InvalidRequest(
            f"{shortened(text, CHARS_MAX)!r} is no cron expression of five fields ({', '.join(FIELDS)}), "
            "such as '30 1 * * *'.",
            code=INVALID,
        )
    cron = Cron(text, zone)
    try:
        first = cron.first_after(now)
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidRequest(_reason(text, zone, now), code=INVALID) from error
    if first is None:
        raise InvalidRequest(f"{text!r} never comes.", code=INVALID)
    return cron


def _reason(text: str, zone: ZoneInfo, now: datetime) -> str:
    """The field that is wrong by itself, or that all of them never meet."""
    for place, (name, value) in enumerate(zip(FIELDS, text.split(), strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[place] = value
        try:
            CronSim(" ".join(alone), now.astimezone(zone))
        except (CronSimError, ValueError, AssertionError):
            return f"{value!r} in {text!r} is no {name}."
    return f"{text!r} never comes: no such day is in those months."
