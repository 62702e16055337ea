"""The worker's composition root."""

import os
import sys
from collections.abc import Sequence

from nightshift.broker.token_streams import StreamWriter
from nightshift.errors import ConfigurationError
from nightshift.jobs.ids import new_id
from nightshift.objectstore import Locations, open_store
from nightshift.objectstore.sources import Sources
from nightshift.outbound.cloud_metadata import open_provider
from nightshift.process.logs import adopt_libraries
from nightshift.process.memory import frozen_imports
from nightshift.process.private_files import keep_files_private
from nightshift.process.settings import (
    DataSettings,
    ImageSettings,
    LocationSettings,
    QueueSettings,
    WorkerSettings,
)
from nightshift.process.tracing.opening import open_traces
from nightshift.store import Store, open_database
from nightshift_engine import limit_spinning
from workers.runtime import Connections, Runtime, RuntimeTimes
from workers.serving.engine_process.launching import SWITCH_INTERVAL_S, launched_ahead
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.models import LazyModel, LoadModels
from workers.serving.referenced_files import ReferencedFiles, egress_of

# Set by the supervisor, which releases this worker's leases after a crash.
WORKER_ID_VARIABLE = "NIGHTSHIFT_WORKER_ID"


def load_models(settings: WorkerSettings, on_fatal: OnFatal) -> Sequence[ModelServer | LazyModel]:
    """The models of upstreams, or in our own engine. The latter imports torch, which nothing before this
    needs.
    """
    if settings.upstreams:
        from workers.upstreams.opening import open_upstreams

        return open_upstreams(settings, on_fatal)
    limit_spinning(os.environ)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Each shard reads and tokenizes on a thread; more for one text take cores from the engine, and spin.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not settings.model_downloads:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's client is imported
    with launched_ahead(settings):
        with frozen_imports():  # else collections take a quarter of the time of a small model's load
            from workers.serving.loading import open_models
        adopt_libraries()
        return open_models(settings, on_fatal)


def compose(load: LoadModels = load_models, times: RuntimeTimes = RuntimeTimes()) -> Runtime:
    """A runtime on the parts that the settings name. Raises ConfigurationError."""
    settings = WorkerSettings()
    if not settings.models and not settings.lazy_models and not settings.upstreams:
        raise ConfigurationError(
            "This worker has no model: set NIGHTSHIFT_MODELS or NIGHTSHIFT_UPSTREAMS.", param="MODELS"
        )
    data = DataSettings()
    keep_files_private(data)
    places = LocationSettings()
    objects = open_store(data.resolved_storage_url)
    locations = Locations.of_settings(places, data)
    queue = QueueSettings()
    sources = Sources(objects, locations)
    images = ImageSettings()
    connections = Connections(
        store=Store(open_database(data)),
        objects=objects,
        sources=sources,
        locations=locations,
        files=ReferencedFiles(sources, egress_of(images)),
        streams=StreamWriter(queue),
        queue=queue,
        close_traces=open_traces("worker"),
    )
    worker_id = os.environ.get(WORKER_ID_VARIABLE) or new_id("wrk")
    provider = open_provider(settings.spot_provider, settings.spot_metadata_url)
    return Runtime(worker_id, settings, connections, load, provider, times=times)
