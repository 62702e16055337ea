"""The headers in which a server says what may still be asked, and how long it took."""

import re
from collections.abc import Mapping
from typing import Final

from conformance.expectations import NotOffered, expect, shown
from conformance.registry import Area
from conformance.session import Session

AREA = Area("rates", "POST", "/chat/completions")
DURATION: Final = re.compile(r"(?=.)(\d+h)?(\d+m(?!s))?(\d+(\.\d+)?s)?(\d+(\.\d+)?ms)?")  # 6m0s, 1.5s, 120ms
LIMITED: Final = ("requests", "tokens")


@AREA.add("x-ratelimit headers are counts, and durations such as 6m0s")
def limits(session: Session) -> None:
    headers = _headers(session)
    named = [name for name in LIMITED if f"x-ratelimit-limit-{name}" in headers]
    if not named:
        raise NotOffered("it sends no x-ratelimit-limit header with a chat")
    for name in named:
        limit, remaining = (_count(headers, f"x-ratelimit-{kind}-{name}") for kind in ("limit", "remaining"))
        expect(remaining <= limit, f"leaves {remaining} {name} of {limit}", "leaves at most the limit")
        reset = headers.get(f"x-ratelimit-reset-{name}", "")
        expect(
            DURATION.fullmatch(reset) is not None,
            f"sends x-ratelimit-reset-{name}: {shown(reset)}",
            "sends a duration such as 1s or 6m0s",
        )


@AREA.add("openai-processing-ms is a count")
def processing(session: Session) -> None:
    headers = _headers(session)
    if "openai-processing-ms" not in headers:
        raise NotOffered("it sends no openai-processing-ms with a chat")
    _count(headers, "openai-processing-ms")


def _headers(session: Session) -> Mapping[str, str]:
    """The headers of the answer to a chat."""
    headers: Mapping[str, str] = session.client.chat.completions.with_raw_response.create(
        **session.chat_body()
    ).headers
    return headers


def _count(headers: Mapping[str, str], name: str) -> int:
    value = headers.get(name, "")
    expect(re.fullmatch("[0-9]+", value) is not None, f"sends {name}: {shown(value)}", "sends an integer")
    return int(value)
