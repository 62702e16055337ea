"""What the checks are given: the settings as the service's processes would read them here."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nightshift.cli import demo
from nightshift.process.settings import (
    ApiSettings,
    ClientSettings,
    DataSettings,
    ImageSettings,
    QueueSettings,
    SchedulerSettings,
    SubmissionSettings,
    WorkerSettings,
)
from nightshift.tenants.keys import API_KEY_FILE

EMBEDDED_SOCKET = Path("valkey", "valkey.sock")  # in the data directory


@dataclass(frozen=True, kw_only=True)
class Site:
    data: DataSettings
    queue: QueueSettings
    worker: WorkerSettings
    client: ClientSettings
    scheduler: SchedulerSettings
    submission: SubmissionSettings
    images: ImageSettings
    api: ApiSettings

    @classmethod
    def of(cls, data: DataSettings) -> "Site":
        """Reads all other settings. Raises InvalidSetting."""
        return cls(
            data=data,
            queue=QueueSettings(),
            worker=WorkerSettings(),
            client=ClientSettings(),
            scheduler=SchedulerSettings(),
            submission=SubmissionSettings(),
            images=ImageSettings(),
            api=ApiSettings(),
        )

    @property
    def models(self) -> Sequence[str]:
        """As `nightshift up` would serve them: the settings', else the demo model."""
        return (*self.worker.models, *self.worker.lazy_models) or (str(demo.demo_model_path()),)

    @property
    def has_embedded_queue(self) -> bool:
        return "redis_url" not in self.queue.model_fields_set

    @property
    def redis(self) -> QueueSettings | None:
        """Where Redis answers. None: it is embedded, and does not run."""
        if not self.has_embedded_queue:
            return self.queue
        socket = self.data.data_dir.absolute() / EMBEDDED_SOCKET
        if not socket.exists():
            return None
        return self.queue.model_copy(update={"redis_url": f"redis+socket://{socket}"})

    @property
    def has_database(self) -> bool:
        """Whether there should be one: the data directory's is made by `nightshift up`."""
        return bool(self.data.database_url) or (self.data.data_dir / "nightshift.db").exists()

    @property
    def key_file(self) -> Path:
        return self.data.data_dir / API_KEY_FILE

    @property
    def api_key(self) -> str:
        """Empty: there is none."""
        if self.client.api_key:
            return self.client.api_key
        with suppress(OSError):
            return self.key_file.read_text().strip()
        return ""
