"""Messages of every error."""

import json

import pytest

from nightshift.errors import MESSAGE_BYTES_MAX, PARAM_BYTES_MAX, InvalidRequest, shortened
from nightshift.outbound.safe_http import BlockedUrl


@pytest.mark.parametrize("letter", ["a", "é", "\N{GRINNING FACE}", "\0", "\ud800", '"', "\n"])
def test_a_message_that_quotes_a_long_text_is_cut(letter: str) -> None:
    error = InvalidRequest(letter * 100_000, param=letter * 100_000)

    assert error.param is not None
    assert len(error.message.encode()) <= MESSAGE_BYTES_MAX
    assert len(error.param.encode()) <= PARAM_BYTES_MAX
    line = json.dumps({"message": error.message, "param": error.param}, ensure_ascii=False)
    assert len(line.encode()) <= 1600
    assert error.message.endswith("…")


def test_a_short_text_stays_as_it_is() -> None:
    assert shortened("a\té\n", 100) == "a\té\n"


def test_a_message_of_several_lines_of_source_is_one_line() -> None:
    """As it is shown on a page, in a log line and after `nightshift:`."""
    assert "\n" not in BlockedUrl().message
