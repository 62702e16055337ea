"""The installation that is checked: the settings as its processes would read them, and its stores."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nightshift.cli import demo
from nightshift.cli.doctor.examination import NotApplicable
from nightshift.cli.models import with_added
from nightshift.objectstore import ObjectStore, open_store
from nightshift.process.settings import (
    ClientSettings,
    DataSettings,
    ImageSettings,
    QueueSettings,
    SchedulerSettings,
    SubmissionSettings,
    WorkerSettings,
)
from nightshift.store import Store, Transaction, open_existing_database
from nightshift.tenants.keys import API_KEY_FILE

EMBEDDED_SOCKET: Final = Path("valkey", "valkey.sock")  # in the data directory


@dataclass(frozen=True, kw_only=True)
class Site:
    data: DataSettings
    queue: QueueSettings = field(default_factory=QueueSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    submission: SubmissionSettings = field(default_factory=SubmissionSettings)
    images: ImageSettings = field(default_factory=ImageSettings)

    @property
    def models(self) -> Sequence[str]:
        """The models that `nightshift up` would serve: those of the settings, else the demo model, and the
        adapters that were added to them.
        """
        named = (*self.worker.models, *self.worker.lazy_models) or (str(demo.demo_model_path()),)
        return with_added(named, self.data.data_dir)

    @property
    def has_embedded_queue(self) -> bool:
        return "redis_url" not in self.queue.model_fields_set

    @property
    def redis(self) -> QueueSettings | None:
        """The settings of a Redis that answers. None: it is embedded, and does not run."""
        if not self.has_embedded_queue:
            return self.queue
        socket = self.data.data_dir.absolute() / EMBEDDED_SOCKET
        if not socket.exists():
            return None
        return self.queue.model_copy(update={"redis_url": f"redis+socket://{socket}"})

    @property
    def has_s3(self) -> bool:
        return self.data.resolved_storage_url.startswith("s3://")

    @property
    def key_file(self) -> Path:
        return self.data.data_dir / API_KEY_FILE

    @property
    def api_key(self) -> str:
        """The key of commands; empty if there is none."""
        if self.client.api_key:
            return self.client.api_key
        with suppress(OSError):
            return self.key_file.read_text().strip()
        return ""

    @contextmanager
    def database(self) -> Iterator[Store]:
        """Opens the database. Raises NotApplicable, DatabaseUnavailable, ConfigurationError."""
        if not self.data.database_url and not (self.data.data_dir / "nightshift.db").exists():
            raise NotApplicable("none yet; `nightshift up` makes it")
        with closing(Store(open_existing_database(self.data))) as store:
            yield store

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Reads the database as `database` opens it."""
        with self.database() as store, store.snapshot() as tx:
            yield tx

    @contextmanager
    def objects(self) -> Iterator[ObjectStore]:
        """Opens the object store. Raises ConfigurationError, StorageError."""
        with closing(open_store(self.data.resolved_storage_url)) as store:
            yield store
