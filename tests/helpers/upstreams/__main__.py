"""A simulated upstream as a process: prints its port once it listens.

    python -m tests.helpers.upstreams PORT SETTINGS

Settings are a JSON object of the fields of Settings; port 0 takes a free one. It ends with its input, which
a parent that is killed closes.
"""

import asyncio
import json
import sys

from tests.helpers.upstreams.server import SimulatedUpstream
from tests.helpers.upstreams.settings import Settings


async def serve(port: int, settings: Settings) -> None:
    upstream = SimulatedUpstream(settings)
    await upstream.start(port)
    print(upstream.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Settings(**json.loads(sys.argv[2]))))
