import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.upstreams.control import BulkRoom, ConcurrencyLimit, RateBudget, UpstreamPlaces
from workers.upstreams.control.room import CHANGE_S, RECENT_S, SAMPLES_MIN, SHARE_MIN


def upstream(places: int = 8, pace: float | None = None, **budget: int) -> UpstreamPlaces:
    limit = ConcurrencyLimit(places)
    limit.pace = pace
    return UpstreamPlaces(limit, RateBudget(**budget))


def shares(*paces: float | None) -> list[int]:
    """Each upstream's requests of 300 that are in flight at once, by their paces."""
    upstreams = [upstream(places=300, pace=pace) for pace in paces]
    for _ in range(300):
        min(upstreams, key=lambda one: one.load).on_sent(0.0, 1, is_interactive=False)
    return [one.limit.in_flight for one in upstreams]


def test_requests_are_shared_in_proportion_to_pace():
    assert shares(100, 200) == [100, 200]


@settings(max_examples=40)
@given(paces=st.lists(st.floats(1, 1000), min_size=2, max_size=5))
def test_no_upstream_starves(paces: list[float]):
    for pace, share in zip(paces, shares(*paces), strict=True):
        assert share >= int(300 * pace / sum(paces)) - len(paces)


def test_an_upstream_that_was_not_measured_gets_the_next_request():
    assert upstream(pace=None).load < upstream(pace=1e9).load
    assert shares(None, None) == [150, 150]


def test_full_paused_and_spent_upstreams_have_no_place():
    full, paused, spent = upstream(), upstream(), upstream(requests_per_minute=61)
    full.limit.in_flight = 8
    paused.limit.paused_until_s = 3.0
    spent.on_sent(0.0, 1, is_interactive=False)
    spent.on_sent(0.0, 1, is_interactive=False)
    waits_s = [places.wait_s(0.0, is_interactive=True) for places in (full, paused, spent)]
    assert waits_s == [math.inf, 3.0, pytest.approx(1.0)]


def test_bulk_rows_take_all_places_while_no_interactive_requests_come():
    place = upstream(places=4)
    for _ in range(4):
        assert place.wait_s(0.0, is_interactive=False) == 0
        place.on_sent(0.0, 1, is_interactive=False)
    assert place.wait_s(0.0, is_interactive=False) == math.inf


def test_a_place_stays_free_for_interactive_requests_while_they_come():
    place = upstream(places=4)
    place.on_sent(0.0, 1, is_interactive=True)
    for _ in range(2):
        place.on_sent(0.0, 1, is_interactive=False)

    assert place.wait_s(1.0, is_interactive=False) == math.inf
    assert place.wait_s(1.0, is_interactive=True) == 0
    assert place.wait_s(RECENT_S, is_interactive=False) == 0, "none came for long"


def test_an_idle_upstream_with_one_place_takes_bulk_rows():
    place = upstream(places=1)
    place.on_sent(0.0, 1, is_interactive=True)
    place.limit.on_lost()
    assert place.wait_s(1.0, is_interactive=False) == 0


class Chats:
    """Interactive requests, some for each change of the share."""

    def __init__(self) -> None:
        self.room = BulkRoom()
        self.now_s = 0.0

    def come(self, first_token_s: float, changes: int = 1) -> float:
        for _ in range(changes):
            self.now_s += CHANGE_S
            self.room.last_sent_s = self.now_s
            for _ in range(SAMPLES_MIN):
                self.room.on_first_token(self.now_s, first_token_s)
        return self.room.share


def test_the_share_of_bulk_rows_shrinks_while_first_tokens_are_late_and_grows_back():
    chats = Chats()
    assert chats.come(0.1) == 1
    shrunk = chats.come(0.5)
    assert shrunk == pytest.approx(0.7)
    assert chats.room.places(chats.now_s, 100) == 70
    assert chats.come(0.12) > shrunk
    assert chats.come(0.12, changes=50) == 1


def test_one_late_first_token_changes_nothing():
    chats = Chats()
    chats.come(0.1)
    chats.room.on_first_token(chats.now_s, 30.0)
    assert chats.come(0.1) == 1


def test_first_tokens_that_are_late_without_bulk_rows_are_the_new_normal():
    chats = Chats()
    chats.come(0.1)
    assert chats.come(0.5, changes=7) == SHARE_MIN
    assert chats.come(0.5, changes=60) == 1
