"""Token streams through a real Valkey: in order, from the start, for every reader."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import redis

from nightshift.broker import token_streams
from nightshift.broker.token_streams import BrokenStream, Delta, End, StreamReader, StreamWriter
from nightshift.process.settings import QueueSettings
from tests.integration.broker.test_queue import AWAY
from tests.integration.servers import ValkeyServer

WAIT_MAX_S = 20.0


@pytest.fixture
def writer(valkey: ValkeyServer) -> Iterator[StreamWriter]:
    writer = StreamWriter(valkey.settings)
    yield writer
    writer.close()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_streams, "READ_BLOCK_MS", 20)


@asynccontextmanager
async def reading(server: ValkeyServer) -> AsyncIterator[StreamReader]:
    # A busy machine connects late.
    slow = server.settings.model_copy(update={"publish_timeout_s": WAIT_MAX_S})
    reader = StreamReader(slow)
    try:
        yield reader
    finally:
        await reader.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def slowly() -> None:
        async with asyncio.timeout(WAIT_MAX_S):
            await test()

    asyncio.run(slowly())


async def entries(reader: StreamReader, shard_id: str) -> list[Delta | End]:
    """Everything up to the end."""
    return [entry async for entry in reader.read(shard_id) if entry is not None]


def tokens(shard_id: str, count: int) -> list[Delta]:
    return [Delta(shard_id, {"text": f"token {n} ☂", "logprob": -0.5}) for n in range(count)]


def test_what_is_written_is_read_in_order_and_ends(valkey: ValkeyServer, writer: StreamWriter) -> None:
    written = [*tokens("shard_1", 250), End("shard_1")]  # more than one read brings

    async def test() -> None:
        async with reading(valkey) as reader:
            assert writer.write(written[:100])
            assert writer.write(written[100:])
            assert await entries(reader, "shard_1") == written

    run(test)


def test_a_reader_that_was_there_first_reads_along(
    valkey: ValkeyServer, writer: StreamWriter, short_waits: None
) -> None:
    async def test() -> None:
        async with reading(valkey) as reader:
            stream = reader.read("shard_1")
            for token in tokens("shard_1", 3):
                assert await anext(stream) is None  # nothing yet: its chance to look into the database
                writer.write([token])
                assert await anext(stream) == token
            writer.write([End("shard_1")])
            assert await anext(stream) == End("shard_1")
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(test)


def test_a_reader_that_comes_back_starts_from_the_first_entry(
    valkey: ValkeyServer, writer: StreamWriter
) -> None:
    written = [*tokens("shard_1", 5), End("shard_1")]
    writer.write(written)

    async def test() -> None:
        async with reading(valkey) as reader:
            cut_off = reader.read("shard_1")
            assert await anext(cut_off) == written[0]
            await cut_off.aclose()  # type: ignore[attr-defined]

            assert await entries(reader, "shard_1") == written
            assert (
                await asyncio.gather(entries(reader, "shard_1"), entries(reader, "shard_1")) == [written] * 2
            )

    run(test)


def test_many_streams_are_read_at_once(valkey: ValkeyServer, writer: StreamWriter) -> None:
    names = [f"shard_{n}" for n in range(50)]

    async def test() -> None:
        async with reading(valkey) as reader:
            answers = [asyncio.create_task(entries(reader, name)) for name in names]
            await asyncio.to_thread(writer.write, [])
            await asyncio.to_thread(writer.write, [Delta(name, {"name": name}) for name in names])
            await asyncio.to_thread(writer.write, [End(name) for name in names])
            for name, answer in zip(names, answers, strict=True):
                assert await answer == [Delta(name, {"name": name}), End(name)]

    run(test)


def test_a_stream_is_bounded_and_expires_by_itself(valkey: ValkeyServer, writer: StreamWriter) -> None:
    for _ in range(3):
        writer.write(tokens("shard_1", 5000))

    assert 0 < valkey.client.ttl("ns:stream:shard_1") <= token_streams.STREAM_TTL_S
    assert token_streams.STREAM_ENTRIES_MAX <= valkey.client.xlen("ns:stream:shard_1") < 11_000


@pytest.mark.parametrize("fault", AWAY)
def test_entries_are_dropped_when_redis_is_away(own_valkey: ValkeyServer, fault: str) -> None:
    writer = StreamWriter(imslow(own_valkey))
    assert writer.write(tokens("shard_1", 1))
    AWAY[fault](own_valkey)

    assert writer.write(tokens("shard_1", 1)) is False
    assert writer.write([End("shard_1")]) is False
    writer.close()


def test_a_writer_goes_on_when_redis_is_back(own_valkey: ValkeyServer) -> None:
    writer = StreamWriter(imslow(own_valkey))
    own_valkey.kill()
    assert writer.write(tokens("shard_1", 1)) is False
    own_valkey.start()

    assert writer.write(tokens("shard_1", 1)) is True
    writer.close()


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_reader_is_told_when_redis_is_away(own_valkey: ValkeyServer, fault: str, short_waits: None) -> None:
    async def test() -> None:
        reader = StreamReader(imslow(own_valkey))
        stream = reader.read("shard_1")
        assert await anext(stream) is None
        AWAY[fault](own_valkey)
        with pytest.raises(redis.RedisError):
            await anext(stream)
        await reader.close()

    run(test)


def test_the_url_of_an_embedded_server_is_understood_by_both_libraries() -> None:
    assert token_streams.connection_url("redis+socket:///run/ns/valkey.sock") == "unix:///run/ns/valkey.sock"
    assert token_streams.connection_url("redis://127.0.0.1:6379/0") == "redis://127.0.0.1:6379/0"


def imslow(server: ValkeyServer) -> QueueSettings:
    return server.settings.model_copy(update={"publish_timeout_s": 0.2})


@pytest.mark.parametrize(
    "fields", [{"delta": "{not json"}, {"delta": "5"}, {"delta": b"\xff"}, {"other": "{}"}]
)
def test_an_entry_that_no_worker_wrote_ends_the_stream_and_says_so(
    valkey: ValkeyServer, writer: StreamWriter, fields: dict[str, str]
) -> None:
    [written] = tokens("shard_1", 1)
    writer.write([written])
    valkey.client.xadd("ns:stream:shard_1", fields)

    async def test() -> None:
        async with reading(valkey) as reader:
            stream = reader.read("shard_1")
            assert await anext(stream) == written
            with pytest.raises(BrokenStream):
                await anext(stream)

    run(test)
