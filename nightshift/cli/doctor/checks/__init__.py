"""Every check of `nightshift doctor`, in the order in which they run. Ids keep their meaning."""

from collections.abc import Sequence
from functools import partial

from nightshift.cli.doctor.checks import database, egress, machine, models, queue, retention, service, storage
from nightshift.cli.doctor.running import Check
from nightshift.cli.doctor.site import Site
from nightshift.fleet import checkpoints


def every_check(site: Site) -> Sequence[Check]:
    """Those of this machine first, those of a running service last."""
    ask = models.WorkerReports()
    return (
        Check("data_directory", "data directory", partial(machine.look_at_directory, site.data.data_dir)),
        Check("disk.space", "disk space", partial(machine.look_at_space, site)),
        Check("disk.inodes", "inodes", partial(machine.look_at_inodes, site)),
        Check("process.files", "open files", machine.look_at_open_files),
        Check("ports.metrics", "metrics ports", partial(machine.look_at_metrics_ports, site)),
        Check("database", "database", partial(database.look_at_database, site)),
        Check("database.schema", "schema", partial(database.look_at_schema, site), {"database"}),
        Check(
            "database.clock", "database's clock", partial(database.look_at_database_clock, site), {"database"}
        ),
        Check("queue", "queue", partial(queue.look_at_queue, site)),
        Check("queue.eviction", "queue's eviction", partial(queue.look_at_eviction, site), {"queue"}),
        Check("queue.persistence", "queue's disk", partial(queue.look_at_persistence, site), {"queue"}),
        Check("queue.clock", "queue's clock", partial(queue.look_at_queue_clock, site), {"queue"}),
        Check("storage", "storage", partial(storage.look_at_storage, site)),
        Check(
            "storage.conditions",
            "conditional requests",
            partial(storage.look_at_conditions, site),
            {"storage"},
        ),
        Check("storage.multipart", "uploads in parts", partial(storage.look_at_multipart, site), {"storage"}),
        Check("storage.latency", "storage latency", partial(storage.look_at_latency, site), {"storage"}),
        Check("storage.clock", "storage's clock", partial(storage.look_at_storage_clock, site), {"storage"}),
        Check("storage.uploads", "abandoned uploads", partial(retention.look_at_uploads, site), _BOTH),
        *_of_models(site),
        Check("gpu", "GPU", partial(models.look_at_gpu, site, ask), is_slow=True),
        Check(
            "model.memory",
            "models' memory",
            partial(models.look_at_memory, site, ask),
            _files(site),
            is_slow=True,
        ),
        Check("spot", "spot notices", partial(egress.look_at_spot, site.worker)),
        Check("egress.webhooks", "webhooks", partial(egress.look_at_webhooks, site)),
        Check("egress.proxies", "proxies", partial(egress.look_at_proxies, site)),
        Check("api_key", "API key", partial(service.look_at_key, site)),
        Check("server", "server", partial(service.look_at_server, site)),
        Check("service", "service", partial(service.look_at_service, site), {"server"}),
        Check("scheduler", "scheduler", partial(database.look_at_scheduler, site), _SCHEMA),
        Check("retention", "retention", partial(retention.look_at_retention, site), {"storage"}),
        Check("workers", "workers", partial(service.look_at_workers, site), _SCHEMA),
    )


_SCHEMA = frozenset({"database", "database.schema"})
_BOTH = frozenset({"storage", *_SCHEMA})


def _of_models(site: Site) -> Sequence[Check]:
    may_download = site.worker.model_downloads
    return [
        Check(
            _file_id(name),
            f"model {checkpoints.model_id(name)}",
            partial(models.look_at_files, name, may_download),
        )
        for name in site.models
    ]


def _files(site: Site) -> frozenset[str]:
    return frozenset(map(_file_id, site.models))


def _file_id(name: str) -> str:
    return f"model.files:{checkpoints.model_id(name)}"
