"""`python -m tests.security.costly.api_child FILE`: the API, which notes in the file for how long its event
loop stood still, in seconds of CPU time: a busy machine does not change it.
"""

import asyncio
import mmap
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

import uvicorn

from api.app import create_app
from api.middleware.connections import BoundedHttp

LONGEST: Final = struct.Struct("d")
BEAT_S: Final = 0.001


class _Server(uvicorn.Server):
    longest: mmap.mmap

    async def main_loop(self) -> None:
        while not self.should_exit:
            began_s = time.process_time()
            await asyncio.sleep(BEAT_S)
            blocked_s = time.process_time() - began_s
            if blocked_s > LONGEST.unpack_from(self.longest)[0]:
                LONGEST.pack_into(self.longest, 0, blocked_s)


def main() -> None:
    # With its protocol named, asyncio sets TCP_NODELAY: without it, an answer in two pieces takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = _Server(uvicorn.Config(create_app(), http=BoundedHttp, log_config=None, access_log=False))
    with Path(sys.argv[1]).open("r+b") as file:
        server.longest = mmap.mmap(file.fileno(), LONGEST.size)
        print(listener.getsockname()[1], flush=True)
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
