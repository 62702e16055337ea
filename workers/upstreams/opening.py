"""Opens the models of upstreams that the settings name."""

import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from aiohttp.abc import AbstractResolver

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import Model
from nightshift.process.settings import WorkerSettings
from nightshift.process.upstreams import API_KEY_VARIABLE, SETTING, Upstream, read_upstreams
from workers.serving.model_server import OnFatal
from workers.upstreams.addresses import EachAddress
from workers.upstreams.connection import Connection
from workers.upstreams.control.concurrency import RETRY_AFTER_S_MAX
from workers.upstreams.faults import KeyRefused, Overloaded, UpstreamFault
from workers.upstreams.probe import Probe
from workers.upstreams.running.dispatcher import Dispatcher
from workers.upstreams.running.loop import LoopThread
from workers.upstreams.running.place import Place
from workers.upstreams.running.server import UpstreamServer
from workers.upstreams.running.upstream import RunningUpstream

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0  # between two questions to an upstream that does not answer yet


def open_upstreams(settings: WorkerSettings, on_fatal: OnFatal) -> list[UpstreamServer]:
    """A server for each model, over all upstreams that have it. Waits until every upstream answers.

    Raises ConfigurationError naming the upstream and what is wrong with it.
    """
    if settings.models or settings.lazy_models:
        raise ConfigurationError(
            "A worker has upstreams or models of its own: set NIGHTSHIFT_UPSTREAMS or NIGHTSHIFT_MODELS, and "
            "start another worker for the other.",
            param=SETTING,
        )

    def opened(config: Upstream, resolver: AbstractResolver | None = None) -> RunningUpstream:
        connection = Connection(config, key_of(config), settings.answer_bytes_max, resolver)
        return RunningUpstream(config, connection)

    configs = read_upstreams(settings.upstreams)
    upstreams = [opened(config) for config in configs if not config.each_address]
    hosts = [EachAddress(config, opened) for config in configs if config.each_address]
    loop = LoopThread(on_fatal)
    try:
        places = [
            Place(upstream, served)
            for upstream in upstreams
            for served in _awaited(upstream.name, Probe(upstream.config, upstream.connection).models, loop)
        ]
        for host in hosts:
            places += _awaited(host.config.name, host.look_up, loop)
        by_model: dict[str, list[Place]] = {}
        for place in places:
            by_model.setdefault(place.model.id, []).append(place)
        check_alike(by_model)
    except BaseException:
        for upstream in [*upstreams, *(place.upstream for host in hosts for place in host.places)]:
            loop.wait_for(upstream.connection.close())
        loop.stop()
        raise
    dispatcher = Dispatcher(loop, [*{place.upstream: None for place in places}])
    for host in hosts:
        loop.run(host.watch(dispatcher))
    return [
        UpstreamServer(_model(id, position, of_model), of_model, dispatcher)
        for position, (id, of_model) in enumerate(by_model.items())
    ]


def key_of(config: Upstream, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key of an upstream. Raises ConfigurationError for one that is not set, or is none."""
    key = environment.get(config.api_key_variable, "").strip()
    is_missing = not key and config.api_key_variable != API_KEY_VARIABLE
    if is_missing or not (key.isascii() and key.isprintable()):
        says = "is not set" if is_missing else "has a character that no header may have"
        raise ConfigurationError(
            f"The upstream {config.name!r} has its key in {config.api_key_variable}, which {says}.",
            param=SETTING,
        )
    return key or None


def check_alike(places: Mapping[str, Sequence[Place]]) -> None:
    """Raises ConfigurationError where two upstreams call different models the same."""
    for id, of_model in places.items():
        first = of_model[0]
        for other in of_model[1:]:
            if (said := first.model.weights) != (differs := other.model.weights):
                raise ConfigurationError(
                    f"The upstreams {first.upstream.name!r} and {other.upstream.name!r} both have a model "
                    f"{id!r}, and it is not the same: {said} and {differs}. Give one of them another id: "
                    "models.NAME.id in a YAML file.",
                    param=SETTING,
                )


def _awaited(name: str, ask: Callable[[], Coroutine[Any, Any, T]], loop: LoopThread) -> T:
    """Waits for an upstream that does not answer yet. Raises ConfigurationError where it refuses the key."""
    while True:
        try:
            return loop.wait_for(ask())
        except KeyRefused as fault:
            raise ConfigurationError(f"The upstream {name!r} {fault}.", param=SETTING) from fault
        except UpstreamFault as fault:
            about = {"action": "upstream_awaited", "upstream": name, "reason": fault.reason}
            log.warning("waiting for an upstream", extra=about)
            pause_s = fault.retry_after_s if isinstance(fault, Overloaded) else None
        time.sleep(min(pause_s or RETRY_S, RETRY_AFTER_S_MAX))


def _model(id: str, position: int, places: Sequence[Place]) -> Model:
    served = places[0].model
    engine = served.engine
    revision = f"{engine.name} {engine.version or '?'} {served.root or served.id_there}"
    return Model(
        id=id,
        kind=served.kind,
        revision=revision[:255],
        context_length=min(place.model.context_length for place in places),
        position=position,
    )
