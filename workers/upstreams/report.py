"""Prints, as one JSON list, what the models of upstreams answer.

    python -m workers.upstreams.report http://gpu-1:8000/v1 upstreams.yaml

`nightshift upstreams probe` and `nightshift doctor` run it: the commands do not import the workers.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from nightshift.errors import ConfigurationError, NightshiftError
from nightshift.jobs import JsonObject
from nightshift.process.upstreams import Upstream, read_upstreams
from workers.upstreams.connection import Connection
from workers.upstreams.faults import UpstreamFault
from workers.upstreams.opening import key_of
from workers.upstreams.probe import QUESTIONS, TEXT_ROUTES, Probe
from workers.upstreams.served import ServedModel

ANSWER_BYTES_MAX: Final = 1 << 24


async def report(upstreams: Sequence[Upstream]) -> list[JsonObject]:
    """An object for each upstream: `name`, `problem` where it cannot be used, and `models`."""
    return [*await asyncio.gather(*map(_of_upstream, upstreams))]


async def _of_upstream(config: Upstream) -> JsonObject:
    told: JsonObject = {"name": config.name, "problem": None, "models": []}
    try:
        connection = Connection(config, key_of(config), ANSWER_BYTES_MAX)
        probe = Probe(config, connection)
        try:
            for served in await probe.models():
                told["models"].append(await _of_model(probe, served))
        finally:
            await connection.close()
    except UpstreamFault as fault:
        told["problem"] = f"The upstream {config.name!r} {fault}."
    except ConfigurationError as error:
        told["problem"] = error.message
    return told


async def _of_model(probe: Probe, served: ServedModel) -> JsonObject:
    text_route = next((route for route in TEXT_ROUTES if route in served.routes), None)

    async def shows(field: str, **parameters: Any) -> bool:
        """Whether answers have the field where they are asked for it."""
        if text_route is None:
            return False
        answer = await probe.takes(text_route, served.id_there, parameters)
        return answer is not None and any(choice.get(field) for choice in answer.get("choices", ()))

    streamed = () if text_route is None else await probe.streamed(text_route, served.id_there)
    return {
        "id": served.id,
        "kind": served.kind,
        "engine": served.engine.name,
        "version": served.engine.version,
        "context_length": served.context_length,
        **{route.removeprefix("/v1").split("/")[1]: route in served.routes for route in QUESTIONS},
        "streaming": any(chunk.get("choices") for chunk in streamed),
        "logprobs": await shows("logprobs", logprobs=True if text_route == TEXT_ROUTES[0] else 1),
        "token_ids": await shows("token_ids", return_token_ids=True),
        "priority": served.takes_priority,
        "continues": served.continues,
    }


def main() -> None:
    try:
        json.dump(asyncio.run(report(read_upstreams(sys.argv[1:]))), sys.stdout)
    except NightshiftError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
