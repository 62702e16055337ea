"""Chats beside bulk: what ends a time to first token, and what the table says of both."""

import random
from pathlib import Path

import pytest

from benchmarks.chats import Chat, has_text, table_row
from benchmarks.service_overhead import Ended, letters, random_lines
from nightshift.jobs import Usage
from tests.helpers.fakes import a_job


@pytest.mark.parametrize(
    ("line", "has_one"),
    [
        ('data: {"choices": [{"delta": {"content": "w7"}}]}', True),
        ('data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}', False),
        ('data: {"choices": [{"delta": {}, "finish_reason": "length"}]}', False),
        ('data: {"choices": [], "usage": {}}', False),
        ("data: [DONE]", False),
        (": keep-alive", False),
        ("", False),
    ],
)
def test_the_first_text_ends_the_time_to_first_token(line: str, has_one: bool) -> None:
    assert has_text(line) is has_one


def test_the_table_compares_chats_and_bulk_with_each_alone() -> None:
    ended = Ended(a_job(usage=Usage(0, 1_800, 0)), submitted_s=0.0, claimed_s=1.0, success_s=3.0)
    alone = [Chat(0.0, first_token_ms) for first_token_ms in (10.0, 20.0, 40.0)]
    beside = [Chat(2.0, first_token_ms) for first_token_ms in (30.0, 60.0)]

    row = table_row(5.0, alone, beside, ended, bulk_alone=1_000.0)

    assert (row["alone p50, ms"], row["alone p99, ms"]) == (20.0, 40.0)
    assert (row["beside p99, ms"], row["p99 beside / alone"]) == (60.0, 1.5)
    assert (row["bulk beside, tok/s"], row["bulk keeps"]) == (900.0, "90.0 %")


def test_uneven_rows_have_answers_over_the_whole_range_and_are_the_same_each_time() -> None:
    lines = random_lines(Path("model"), 500, (16, 240))

    limits = [line["body"]["max_tokens"] for line in lines]
    assert (min(limits), max(limits)) == (16, 240)
    assert len({line["body"]["prompt"] for line in lines}) == 500
    assert lines == random_lines(Path("model"), 500, (16, 240))
    assert 100 <= len(letters(random.Random(1))) <= 300
