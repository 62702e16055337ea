"""Whose texts are sent next."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from nightshift.broker.token_streams import Delta
from workers.online import publisher
from workers.online.publisher import Publisher, Text

WAIT_MAX_S = 60
AT_ONCE = 4


class Streams:
    """Keeps what is written, once it may be."""

    def __init__(self) -> None:
        self.writes: list[list[str]] = []
        self.has_begun, self.may_write = threading.Event(), threading.Event()

    def write(self, entries: Sequence[Delta]) -> None:
        self.has_begun.set()
        assert self.may_write.wait(WAIT_MAX_S)
        self.writes.append([entry.shard_id for entry in entries])


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def publishing(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setattr(publisher, "PUBLISH_MAX", AT_ONCE)
    publishing = Publisher(None, streams, None)  # type: ignore[arg-type]
    publishing.start()
    yield publishing
    streams.may_write.set()
    publishing.stop()


def text(name: str) -> Text:
    return Text(name, 0, 0, "word", 0, None)


def test_many_texts_of_a_tenant_hold_up_no_other_tenants(publishing: Publisher, streams: Streams) -> None:
    publishing.put("many", text("first"))
    assert streams.has_begun.wait(WAIT_MAX_S)
    for number in range(40):
        publishing.put("many", text(f"many-{number}"))
    for name in ("one-0", "one-1"):
        publishing.put("one", text(name))

    streams.may_write.set()
    publishing.stop()

    assert streams.writes[:2] == [["first"], ["many-0", "one-0", "many-1", "one-1"]]
    assert [name for names in streams.writes[2:] for name in names] == [
        f"many-{number}" for number in range(2, 40)
    ]
