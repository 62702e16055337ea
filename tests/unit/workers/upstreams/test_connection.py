"""Connections that are kept alive, on the side that does not know of their end."""

import asyncio
import socket
import struct
import threading

import pytest

from nightshift.process.upstreams import Upstream
from tests.helpers.waiting import WAIT_MAX_S
from workers.upstreams.connection import Connection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: what was sent is not waited for
CLOSES = struct.pack("ii", 0, 0)


@pytest.mark.parametrize("linger", [RESETS, CLOSES], ids=["reset", "closed"])
def test_a_request_that_meets_the_end_of_a_kept_connection_is_sent_again(linger: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_MAX_S)

        def serve() -> None:
            first, _ = listening.accept()
            first.recv(1 << 16)
            first.sendall(ANSWER)
            first.recv(1 << 16)  # the next request
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            first.close()
            second, _ = listening.accept()
            with second:
                second.recv(1 << 16)
                second.sendall(ANSWER)

        thread = threading.Thread(target=serve)
        thread.start()

        async def ask_twice() -> list[bytes]:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
            connection = Connection(Upstream(url=url), None, 1 << 10)
            try:
                return [(await connection.post("/v1/completions", {})).data for _ in range(2)]
            finally:
                await connection.close()

        assert asyncio.run(ask_twice()) == [b"{}", b"{}"]
        thread.join()
