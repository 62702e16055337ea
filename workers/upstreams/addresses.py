"""Servers behind one name: each address that the host resolves to is an upstream of its own.

A headless Service of Kubernetes resolves to its ready pods, which come and go. On the loop's thread.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from nightshift.errors import ConfigurationError
from nightshift.process.upstreams import Upstream
from workers.upstreams.faults import Unavailable, UpstreamFault
from workers.upstreams.probe import Probe
from workers.upstreams.running.dispatcher import Dispatcher
from workers.upstreams.running.place import Place
from workers.upstreams.running.upstream import RunningUpstream

log = logging.getLogger(__name__)

LOOK_UP_S: Final = 30.0
ADDRESSES_MAX: Final = 256


class OneAddress(AbstractResolver):
    """Resolves every host to one address: headers and certificates keep the host's name."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        kind = socket.AF_INET6 if ip_address(self._address).version == 6 else socket.AF_INET
        return [ResolveResult(hostname=host, host=self._address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        """Holds nothing."""


class EachAddress:
    """The addresses of one host."""

    def __init__(self, config: Upstream, open_at: Callable[[Upstream, OneAddress], RunningUpstream]) -> None:
        self.config = config
        self._open_at = open_at
        self._places: dict[str, list[Place]] = {}  # of the models at each address
        self._current: set[str] = set()  # addresses that the host resolves to now

    async def look_up(self) -> Sequence[Place]:
        """The places that answer. Raises ConfigurationError or an UpstreamFault where none does."""
        self._current = await addresses_of(self.config)
        faults = await asyncio.gather(*map(self._add, self._current - self._places.keys()))
        if not (places := self.places):
            raise next(filter(None, faults), Unavailable("has no address that answers"))
        return places

    @property
    def places(self) -> Sequence[Place]:
        return [place for address in self._current for place in self._places.get(address, ())]

    async def watch(self, dispatcher: Dispatcher) -> None:
        """Follows the addresses for good. While none is known, the last ones stay."""
        while True:
            await asyncio.sleep(LOOK_UP_S)
            try:
                await self.look_up()
            except (UpstreamFault, ConfigurationError) as fault:
                _warn(self.config.name, fault)
                continue
            self._apply(dispatcher)
            await self._close_left(dispatcher)

    def _apply(self, dispatcher: Dispatcher) -> None:
        """Gives each model's server the places that there are now. Models are those of the start."""
        mine = {place.upstream for places in self._places.values() for place in places}
        for server in dispatcher.servers:
            weights = server.places[0].model.weights
            server.places = [
                *(place for place in server.places if place.upstream not in mine),
                *(
                    place
                    for place in self.places
                    if place.model.id == server.model.id and place.model.weights == weights
                ),
            ] or server.places
        dispatcher.upstreams += {place.upstream for place in self.places} - {*dispatcher.upstreams}
        dispatcher.wake()

    async def _add(self, address: str) -> UpstreamFault | ConfigurationError | None:
        """Adds an address, or tells why it cannot be used."""
        config = self.config.model_copy(update={"name": f"{self.config.name}/{address}"})
        upstream = self._open_at(config, OneAddress(address))
        try:
            models = await Probe(config, upstream.connection).models()
            self._places[address] = [Place(upstream, served) for served in models]
        except (UpstreamFault, ConfigurationError) as fault:
            _warn(config.name, fault)
            return fault
        finally:
            if address not in self._places:
                await upstream.connection.close()
        return None

    async def _close_left(self, dispatcher: Dispatcher) -> None:
        """Forgets addresses that are gone, once they have no request."""
        in_use = {place.upstream for server in dispatcher.servers for place in server.places}
        for address in self._places.keys() - self._current:
            upstream = self._places[address][0].upstream
            if upstream not in in_use and not upstream.places.limit.in_flight:
                del self._places[address]
                dispatcher.upstreams.remove(upstream)
                await upstream.connection.close()


async def addresses_of(config: Upstream) -> set[str]:
    """Addresses of its host. Raises Unavailable."""
    parts = urlsplit(config.url)
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise Unavailable("has a host that does not resolve") from error
    return {str(info[4][0]) for info in infos[:ADDRESSES_MAX]}


def _warn(name: str, reason: Exception) -> None:
    about = {"action": "address_left_out", "upstream": name, "reason": str(reason)}
    log.warning("an address is left out", extra=about)
