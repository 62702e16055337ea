"""The checks of `nightshift doctor`, in the order in which they run. Ids keep their meaning."""

from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Final

from nightshift.cli.doctor.checks import database, egress, machine, models, queue, retention, service, storage
from nightshift.cli.doctor.examination import Check, Finding
from nightshift.cli.doctor.site import Site
from nightshift.fleet import checkpoints

_SCHEMA: Final = frozenset({"database", "database.schema"})
_STORAGE: Final = frozenset({"storage"})

_Row = tuple[str, str, Callable[[Site], Finding], Collection[str]]

_FIRST: Final[Sequence[_Row]] = (
    ("data_directory", "data directory", machine.look_at_directory, ()),
    ("disk.space", "disk space", machine.look_at_space, ()),
    ("disk.inodes", "inodes", machine.look_at_inodes, ()),
    ("process.files", "open files", lambda site: machine.look_at_open_files(), ()),
    ("ports.metrics", "metrics ports", machine.look_at_metrics_ports, ()),
    ("database", "database", database.look_at_database, ()),
    ("database.schema", "schema", database.look_at_schema, {"database"}),
    ("database.clock", "database's clock", database.look_at_database_clock, {"database"}),
    ("queue", "queue", queue.look_at_queue, ()),
    ("queue.eviction", "queue's eviction", queue.look_at_eviction, {"queue"}),
    ("queue.persistence", "queue's disk", queue.look_at_persistence, {"queue"}),
    ("queue.clock", "queue's clock", queue.look_at_queue_clock, {"queue"}),
    ("storage", "storage", storage.look_at_storage, ()),
    ("storage.conditions", "conditional requests", storage.look_at_conditions, _STORAGE),
    ("storage.multipart", "uploads in parts", storage.look_at_multipart, _STORAGE),
    ("storage.latency", "storage latency", storage.look_at_latency, _STORAGE),
    ("storage.clock", "storage's clock", storage.look_at_storage_clock, _STORAGE),
    ("storage.uploads", "abandoned uploads", retention.look_at_uploads, _STORAGE | _SCHEMA),
)
_LAST: Final[Sequence[_Row]] = (
    ("spot", "spot notices", egress.look_at_spot, ()),
    ("egress.webhooks", "webhooks", egress.look_at_webhooks, ()),
    ("egress.proxies", "proxies", egress.look_at_proxies, ()),
    ("api_key", "API key", service.look_at_key, ()),
    ("server", "server", service.look_at_server, ()),
    ("service", "service", service.look_at_service, {"server"}),
    ("scheduler", "scheduler", database.look_at_scheduler, _SCHEMA),
    ("retention", "retention", retention.look_at_retention, _STORAGE),
    ("workers", "workers", service.look_at_workers, _SCHEMA),
)


def every_check(site: Site) -> Sequence[Check]:
    """Checks of this machine first, those of a running service last."""
    return (
        *(Check(id, name, partial(look, site), needs) for id, name, look, needs in _FIRST),
        *_of_models(site),
        *(Check(id, name, partial(look, site), needs) for id, name, look, needs in _LAST),
    )


def _of_models(site: Site) -> Sequence[Check]:
    if entries := site.worker.upstreams:  # in place of models
        return (Check("upstreams", "upstreams", partial(models.look_at_upstreams, entries), is_slow=True),)
    ask = cache(lambda: models.worker_report(site))
    ids = {name: checkpoints.model_id(name) for name in site.models}
    files = [
        Check(
            f"model.files:{id}",
            f"model {id}",
            partial(models.look_at_files, name, site.worker.model_downloads),
        )
        for name, id in ids.items()
    ]
    return (
        *files,
        Check("gpu", "GPU", partial(models.look_at_gpu, site, ask), is_slow=True),
        Check(
            "model.memory",
            "models' memory",
            partial(models.look_at_memory, site, ask),
            {check.id for check in files},
            is_slow=True,
        ),
    )
