"""Drafts of tokens that followed the last ones of a sequence before, among its own."""

import random
from array import array

import pytest

from nightshift_engine.core.speculation.lookup import MATCH_MAX, RECENT_MAX, OwnTokens


def followed(tokens: list[int], most: int = 4) -> tuple[int, list[int]] | None:
    own, known = OwnTokens(), array("q", tokens)
    own.extend(known)
    return own.follow(known, most)


def test_the_tokens_after_the_last_place_of_the_same_run_are_drafted() -> None:
    assert followed([1, 2, 3, 7, 8, 9, 10, 1, 2, 3, 5, 6, 1, 2, 3]) == (3, [5, 6, 1, 2])


def test_no_tokens_are_drafted_where_none_are_wanted() -> None:
    assert followed([1, 2, 3, 7, 1, 2, 3], most=0) is None


def test_a_run_that_reaches_the_end_repeats_itself() -> None:
    assert followed([4, 9, 8, 7, 9, 8, 7], most=8) == (3, [9, 8, 7, 9, 8, 7, 9, 8])


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 1, 2]])
def test_nothing_is_drafted_where_the_run_stands_nowhere_else(tokens: list[int]) -> None:
    assert followed(tokens) is None


def test_the_match_counts_equal_tokens_before_up_to_a_bound() -> None:
    text = list(range(50, 90))

    assert followed([*text[:20], 1, 2, *text[10:20]], 2) == (10, [1, 2])
    assert followed([*text, 1, 2, *text], 2) == (MATCH_MAX, [1, 2])


def test_a_text_that_is_copied_with_a_change_goes_on_after_it() -> None:
    own, text = OwnTokens(), list(range(50, 80))
    known = array("q", [*text, 1, *text[:10]])
    own.extend(known)
    assert own.follow(known, 2) == (10, text[10:12])

    known.append(7)  # in place of text[10]
    own.extend(known)
    assert own.follow(known, 2) == (0, text[11:13])

    known.extend([8, 9, 10])
    own.extend(known)
    assert own.follow(known, 2) is None, "too much is another text"


def test_what_is_found_is_what_a_search_from_the_end_finds_however_the_tokens_came() -> None:
    chance = random.Random(3)
    for _ in range(30):
        tokens = [chance.randrange(6) for _ in range(chance.randint(4, 1400))]
        own, known = OwnTokens(), array("q")
        while len(known) < len(tokens):
            known.extend(tokens[len(known) :][: chance.choice([1, 2, 30, RECENT_MAX + 1])])
            own.extend(known)
        found_place = next(
            (end for end in range(len(tokens) - 1, 2, -1) if tokens[end - 3 : end] == tokens[-3:]), None
        )
        draft = own.follow(known, 1)

        if found_place is None:
            assert draft is None
        else:
            assert draft is not None
            assert draft[1] == [tokens[found_place]]


def test_runs_with_equal_keys_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift_engine.core.speculation.lookup._KEYS", 0)

    assert followed([1, 2, 3, 4, 5, 6, 7]) is None
