"""Pages get short at once while writing them takes long, and long again step by step."""

from scheduler.input.pages import LEAST, LONG_S, SHORT_S, PageSize


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def page_size_after(*pages: tuple[int, float], most: int = 200) -> int:
    """Pages of so many shards took so long."""
    clock = Clock()
    size = PageSize(most, clock)
    for shards, took_s in pages:
        with size.timed(shards):
            clock.now_s += took_s
    return size.shards


def test_a_page_that_takes_long_halves_the_next() -> None:
    assert page_size_after((200, LONG_S * 1.1)) == 100
    assert page_size_after((200, LONG_S * 1.1), (100, LONG_S * 1.1)) == 50


def test_a_page_of_few_shards_does_not_take_long_for_their_number() -> None:
    assert page_size_after((LEAST, 1.0)) == 200


def test_pages_never_get_shorter_than_the_least() -> None:
    assert page_size_after(*[(200, 1.0)] * 20) == LEAST
    assert page_size_after((5, 1.0), most=5) == 5


def test_pages_get_longer_again_up_to_the_most() -> None:
    short = (200, 1.0), (100, 1.0)
    assert page_size_after(*short, (50, 0.0)) == 100
    assert page_size_after(*short, (50, 0.0), (100, 0.0), (200, 0.0)) == 200


def test_what_takes_neither_long_nor_little_changes_nothing() -> None:
    assert page_size_after((200, 1.0), (100, (LONG_S + SHORT_S) / 2)) == 100


def test_a_page_that_is_not_full_does_not_make_the_next_longer() -> None:
    assert page_size_after((200, 1.0), (20, 0.0)) == 100
