"""Opens the models of upstreams that the settings name."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import Model
from nightshift.process.settings import WorkerSettings
from nightshift.process.upstreams import API_KEY_VARIABLE, SETTING, Upstream, read_upstreams
from workers.serving.model_server import OnFatal
from workers.upstreams.connection import Connection
from workers.upstreams.faults import RowFailed, RowRefused, UpstreamFault
from workers.upstreams.loop import LoopThread
from workers.upstreams.probe import ServedModel, probe
from workers.upstreams.server import Dispatcher, Place, UpstreamServer
from workers.upstreams.upstream import RunningUpstream

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
    configs = read_upstreams(settings.upstreams)
    connections = [Connection(config, key_of(config), settings.answer_bytes_max) for config in configs]
    loop = LoopThread(on_fatal)
    try:
        places: dict[str, list[Place]] = {}
        upstreams = [RunningUpstream(*pair) for pair in zip(configs, connections, strict=True)]
        for upstream in upstreams:
            for served in _probed(upstream, loop):
                places.setdefault(served.id, []).append(Place(upstream, served))
        check_alike(places)
    except BaseException:
        loop.stop()
        raise
    dispatcher = Dispatcher(loop, upstreams)
    return [
        UpstreamServer(_model(id, position, of_model), of_model, dispatcher)
        for position, (id, of_model) in enumerate(places.items())
    ]


def key_of(config: Upstream, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key of an upstream. Raises ConfigurationError where the variable that it names is not set."""
    key = environment.get(config.api_key_variable, "").strip()
    if not key and config.api_key_variable != API_KEY_VARIABLE:
        raise ConfigurationError(
            f"The upstream {config.name!r} has its key in {config.api_key_variable}, which is not set.",
            param=SETTING,
        )
    return key or None


def check_alike(places: Mapping[str, Sequence[Place]]) -> None:
    """Raises ConfigurationError where two upstreams call different models the same."""
    for id, of_model in places.items():
        first = of_model[0]
        for other in of_model[1:]:
            if (said := _weights(first.model)) != (differs := _weights(other.model)):
                raise ConfigurationError(
                    f"The upstreams {first.upstream.name!r} and {other.upstream.name!r} both have a model "
                    f"{id!r}, and it is not the same: {said} and {differs}. Give one of them another id: "
                    "models.NAME.id in a YAML file.",
                    param=SETTING,
                )


def _weights(served: ServedModel) -> str:
    """A text that tells models of one name apart: the folder or repository's name, kind and context."""
    root = PurePosixPath(served.root or served.id_there).name
    return f"{root} ({served.kind.value}, {served.context_length} tokens)"


def _probed(upstream: RunningUpstream, loop: LoopThread) -> Sequence[ServedModel]:
    """Waits for an upstream that does not answer yet, and says so once for each reason."""
    told: str | None = None
    while True:
        try:
            return loop.wait_for(probe(upstream.config, upstream.connection))
        except (UpstreamFault, RowFailed, RowRefused) as fault:
            if str(fault) != told:
                told = str(fault)
                about = {"action": "upstream_awaited", "upstream": upstream.name, "reason": told}
                log.warning("waiting for an upstream", extra=about)
        time.sleep(RETRY_S)


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
