"""The operator's settings: environment variables `NIGHTSHIFT_*` (and `.env`), one frozen class per concern.

Each composition root reads them once. S3 uses the standard AWS variables.
"""

import re
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from nightshift.errors import InvalidSetting
from nightshift.fleet.costs import Prices
from nightshift.fleet.workers import POOL_PATTERN
from nightshift.jobs.leases import LeaseConfig
from nightshift.tenants.cache_groups import NO_GROUPS, CacheGroups
from nightshift.tenants.quotas import QUOTA_MAX, Quotas

MIB = 1024 * 1024
PREFIX: Final = "NIGHTSHIFT_"
HOLD_PASSWORDS: Final = frozenset({"database_url", "redis_url", "secret_key", "api_key"})


def default_data_dir() -> Path:
    return Path.home() / ".nightshift"


class _Settings(BaseSettings):
    """Raises InvalidSetting."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        extra="ignore",
        frozen=True,
        populate_by_name=True,
    )

    @model_validator(mode="wrap")
    @classmethod
    def _name_variables(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(data)
        except ValidationError as error:
            raise InvalidSetting("; ".join(_in_words(found) for found in error.errors())) from error


def _in_words(found: Any) -> str:
    """A pydantic error as `NIGHTSHIFT_ONLINE_SLOTS is 'many': it should be a valid integer, …`."""
    says = found["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    name = str(found["loc"][0])
    value = "not shown here" if name in HOLD_PASSWORDS else repr(found["input"])
    return f"{PREFIX}{name.upper()} is {value}: {says}"


def _ascending(**times_s: float) -> None:
    values = list(times_s.values())
    if any(shorter >= longer for shorter, longer in pairwise(values)):
        order = " < ".join(f"{PREFIX}{name}" for name in times_s)
        found = " and ".join(", ".join(f"{value:g}" for value in values).rsplit(", ", 1))
        raise InvalidSetting(f"{order} must hold, and they are {found}")


def _at_most(whole: str, whole_s: float, **parts_s: float) -> None:
    for name, value in parts_s.items():
        if value > whole_s:
            raise InvalidSetting(
                f"{PREFIX}{name} ≤ {PREFIX}{whole} must hold, and they are {value:g} and {whole_s:g}"
            )


def _split(value: object) -> object:
    """Split `a,b,c`; JSON in an environment variable invites quoting mistakes."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


PORT_MAX: Final = 65535


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    for cidr in value:
        ip_network(cidr, strict=False)
    return value


def _http_url(value: str) -> str:
    """Accepts an empty value, or an http(s) URL with a host."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise ValueError(f"it should be a URL: {error}") from error
    if value and not (url.scheme in ("http", "https") and url.host and (url.port or 0) <= PORT_MAX):
        raise ValueError("it should be http://HOST:PORT")
    return value


def _redis_url(value: str) -> str:
    """Accepts a URL that all our Redis clients can use."""
    says = "it should be redis://HOST:PORT/0, rediss://HOST:PORT/0 or redis+socket:///PATH"
    try:
        url = urlsplit(value)
        has_host = bool(url.hostname) and url.port != 0
    except ValueError:  # it may quote part of the password
        raise ValueError(says) from None
    if value.startswith("redis+socket:///") or (url.scheme in ("redis", "rediss") and has_host):
        return value
    raise ValueError(says)


def _port_ranges(words: tuple[str, ...]) -> tuple[range, ...]:
    """Raises ValueError."""
    pairs = [word.partition("-") for word in words]
    if not pairs or not all(_is_port(first) and (_is_port(last) or not dash) for first, dash, last in pairs):
        raise ValueError("it should be ports and ranges of ports, such as 443,8000-8999")
    return tuple(range(int(first), int(last or first) + 1) for first, _, last in pairs)


def _ports(value: object) -> object:
    """Split, and checked. Raises ValueError."""
    words = _split(value)
    if isinstance(words, tuple):
        _port_ranges(words)
    return words


def _is_port(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= PORT_MAX


def _cache_groups(value: object) -> object:
    """Split, and parsed. Raises ValueError."""
    words = _split(value)
    return CacheGroups.parse(words) if isinstance(words, tuple) else words


Words = Annotated[tuple[str, ...], NoDecode]
Paths = Annotated[tuple[Path, ...], NoDecode]
Cidrs = Annotated[tuple[str, ...], NoDecode, AfterValidator(_networks)]
Ports = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_ports)]
Groups = Annotated[CacheGroups, NoDecode, BeforeValidator(_cache_groups)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
PortOrNone = Annotated[int, Field(ge=0, le=PORT_MAX)]  # 0: none

COUNT_MAX: Final = 2**63 - 1  # the databases' largest integer
Count = Annotated[int, Field(ge=1, le=COUNT_MAX)]
Limit = Annotated[int, Field(ge=0, le=COUNT_MAX)]  # 0: none allowed
Quota = Annotated[int, Field(ge=1, le=QUOTA_MAX)]

Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

SECONDS_MAX: Final = 24 * 86400  # databases and sockets hold milliseconds in 32 bits
YEARS: Final = 10 * 365 * 86400
Seconds = Annotated[float, Field(ge=0.001, le=SECONDS_MAX, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(gt=0, le=1000 * SECONDS_MAX, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]  # 0: off


class DataSettings(_Settings):
    data_dir: Path = Field(default_factory=default_data_dir)
    # sqlite:///… or postgresql+psycopg://…; default: a file in data_dir. May hold a password.
    database_url: str = Field(default="", repr=False)
    storage_url: str = ""  # file:///… or s3://bucket/prefix; default: in data_dir
    # Encrypts webhook secrets; default: a file in data_dir.
    secret_key: str = Field(default="", repr=False)
    database_pool_size: Count = 10
    database_busy_timeout_s: Seconds = 15.0  # for SQLite's write lock
    database_timeout_s: Seconds = 10.0  # per PostgreSQL statement or pooled connection

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'nightshift.db'}"

    @property
    def resolved_storage_url(self) -> str:
        return self.storage_url or (self.data_dir.absolute() / "objects").as_uri()

    @property
    def files_dir(self) -> Path:
        """The part of the data directory that jobs may name."""
        return self.data_dir.absolute() / "files"

    @property
    def own_places(self) -> tuple[str, ...]:
        """Paths and `s3://` URLs of what no job may name: keys, database and objects."""
        storage = unquote(self.resolved_storage_url.removeprefix("file://"))
        scheme, _, database = self.resolved_database_url.partition(":///")
        files = [f"{database}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
        return (str(self.data_dir.absolute()), storage, *(files if scheme.startswith("sqlite") else ()))


class LogSettings(_Settings):
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "human", "json"] = "auto"  # human on a terminal, else json


class QueueSettings(_Settings):
    # redis+socket:///path for an embedded server. May hold a password.
    redis_url: RedisUrl = Field(default="redis://127.0.0.1:6379/0", repr=False)
    publish_timeout_s: Seconds = 1.0  # the longest an absent Redis delays a submit


def _octal(value: object) -> object:
    """`022`, as shells write it."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch("[0-7]{1,4}", value):
        raise ValueError("it should be an octal number, such as 022")
    return int(value, 8)


Umask = Annotated[int, BeforeValidator(_octal), Field(ge=0, le=0o777)]


class LocationSettings(_Settings):
    """The places that jobs may name, and whose they are (`objectstore/places.py`). None by default."""

    s3_buckets: Words = ()
    file_roots: Words = ()
    # Of outputs in FILE_ROOTS; None: as the service was started with (`processes/private_files.py`).
    output_umask: Umask | None = None

    _split = field_validator("s3_buckets", "file_roots", mode="before")(_split)


class ImageSettings(_Settings):
    """Where images that requests name by https may be fetched from."""

    image_allow_cidrs: Cidrs = ()  # private networks allowed
    image_ports: Ports = ("443",)  # the only ones
    image_fetch_s: Seconds = 15.0  # for one image, redirects included

    _split = field_validator("image_allow_cidrs", mode="before")(_split)

    @property
    def port_ranges(self) -> tuple[range, ...]:
        return _port_ranges(self.image_ports)


ANSWER_BYTES_MAX: Final = 64 * MIB


class RowSettings(_Settings):
    line_bytes_max: Count = 4 * MIB  # one input row
    # One answer as JSON, as it may become: 2,048 vectors of 1,024 numbers. It is stored and sent whole.
    answer_bytes_max: Annotated[int, Field(ge=MIB, le=512 * MIB)] = ANSWER_BYTES_MAX  # SQLite holds 1 GB


class PriceSettings(_Settings):
    """What an hour of a worker costs, in a currency that the operator knows; None: not known."""

    worker_price_per_hour_spot: Price | None = None
    worker_price_per_hour_on_demand: Price | None = None

    @property
    def prices(self) -> Prices:
        return Prices(self.worker_price_per_hour_spot, self.worker_price_per_hour_on_demand)


class SubmissionSettings(RowSettings):
    """Which jobs are accepted, and how many may wait."""

    models: Words = ()  # known before a worker registers
    lazy_models: Words = ()  # likewise
    online_queue_max: Limit = 1000  # unfinished online requests per tenant; more get 429
    online_queue_total_max: Limit = 10_000  # … of all tenants together
    bulk_jobs_max: Limit = 1000  # unfinished bulk jobs per tenant; more get 429
    bulk_rows_max: Limit = 100_000_000  # unfinished rows per tenant; more get 429
    bulk_rows_total_max: Limit = 1_000_000_000  # … of all tenants together
    template_bytes_max: Count = 64 * 1024  # of a job's template, as JSON
    completion_window_max_s: Annotated[int, Field(ge=1, le=YEARS)] = 30 * 86400
    webhook_allow_cidrs: Cidrs = ()  # private networks allowed
    webhook_ports: Ports = ("80", "443")  # the only ones: a tenant's URL may not reach other services

    _split = field_validator("models", "lazy_models", "webhook_allow_cidrs", mode="before")(_split)

    @property
    def announced_models(self) -> tuple[str, ...]:
        return (*self.models, *self.lazy_models)

    @property
    def webhook_port_ranges(self) -> tuple[range, ...]:
        return _port_ranges(self.webhook_ports)


class QuotaSettings(_Settings):
    """The quotas of tenants that have none of their own (`nightshift/tenants/quotas.py`); None: unlimited."""

    quota_requests_per_minute: Quota | None = None
    quota_tokens_per_minute: Quota | None = None
    quota_concurrent_requests: Quota | None = None
    quota_open_streams: Quota | None = None
    quota_uploads_in_flight: Quota | None = None
    quota_queued_rows: Quota | None = None
    quota_queued_tokens: Quota | None = None
    quota_stored_files: Quota | None = None
    quota_stored_bytes: Quota | None = None

    @property
    def defaults(self) -> Quotas:
        return Quotas.of({name.removeprefix("quota_"): value for name, value in self.model_dump().items()})


DAY_S: Final = 86_400
# From as long as a client may still be reading its answer; 10 years is as good as for ever.
Retention = Annotated[float, Field(ge=60, le=YEARS, allow_inf_nan=False)]


class RetentionSettings(_Settings):
    """How long what belongs to a job stays after the job's end, deliveries after their event, and workers
    after their last heartbeat.
    """

    # As long as the Idempotency-Key of a request is known, which repeats its answer.
    online_job_retention_s: Retention = DAY_S
    online_body_retention_s: Retention = DAY_S  # its request and its answer
    result_retention_s: Retention = 30 * DAY_S  # of bulk jobs; as OpenAI keeps a batch's files
    event_retention_s: Retention = 7 * DAY_S  # streams are resumed within minutes; for a look back
    delivery_retention_s: Retention = 30 * DAY_S  # an event is tried for three days
    bulk_job_retention_s: Retention = 90 * DAY_S  # a quarter's nightly runs
    worker_retention_s: Retention = 30 * DAY_S  # why it ended is asked within days

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        """What goes with its job cannot stay longer."""
        _at_most(
            "ONLINE_JOB_RETENTION_S",
            self.online_job_retention_s,
            ONLINE_BODY_RETENTION_S=self.online_body_retention_s,
        )
        _at_most(
            "BULK_JOB_RETENTION_S",
            self.bulk_job_retention_s,
            RESULT_RETENTION_S=self.result_retention_s,
            EVENT_RETENTION_S=self.event_retention_s,
            DELIVERY_RETENTION_S=self.delivery_retention_s,
        )
        return self


class ApiSettings(PriceSettings):
    base_url: str = "http://127.0.0.1:8000"  # used in `links`
    body_bytes_max: Count = 4 * MIB
    bodies_bytes_max: Count = 256 * MIB  # of all large bodies in one process; at least twice one's
    file_bytes_max: Count = 200 * MIB
    upload_bytes_max: Count = 8 * 1024 * MIB  # of a file that arrives in parts
    uploads_pending_max: Count = 100  # files arriving in parts, per tenant; more get 429
    online_wait_s: Seconds = 600.0  # for a chat answer
    ready_needs_worker: bool = False  # /readyz waits for a loaded worker
    # One is signed out of the page so long after the last click, and after the sign-in.
    page_idle_s: Annotated[float, Field(ge=60, le=YEARS, allow_inf_nan=False)] = 12 * 3600.0
    page_session_s: Annotated[float, Field(ge=60, le=YEARS, allow_inf_nan=False)] = 7 * 86400.0
    metrics_sockets: Paths = ()  # of other processes, whose metrics GET /metrics shows too

    _split = field_validator("metrics_sockets", mode="before")(_split)


class ClientSettings(_Settings):
    base_url: str = "http://127.0.0.1:8000"
    api_key: str = Field(default="", repr=False)  # default: a file in data_dir


class SchedulerSettings(RowSettings):
    shard_bytes: Count = 256 * 1024  # per shard
    shards_per_job_max: Count = 100_000  # beside the first of each of its objects
    shards_per_page_max: Count = 250  # recorded in one transaction
    rows_per_file_max: Count = 50_000  # OpenAI routes
    embedding_inputs_per_file_max: Count = 50_000
    attempts_max: Count = 20  # leases of one shard in a row without progress
    leader_ttl_s: Seconds = 15.0  # a dead leader is replaced after this
    leader_trust_s: Seconds = 10.0  # without a renewal, the leader stops
    leader_attempt_s: Seconds = 3.0  # between attempts to become or stay leader
    duty_stalled_s: Seconds = 900.0  # /readyz names a duty that has not ended for longer
    ring_after_s: Seconds = 10.0  # queued work is rung again after this
    webhook_progress_interval_s: Seconds = 30.0  # between job.progress events of one job, at least
    retention_interval_s: Seconds = 300.0  # between passes over unreferenced objects
    # An unreferenced object is collected after this age.
    orphan_age_s: Annotated[float, Field(ge=1, le=YEARS, allow_inf_nan=False)] = 3600.0
    scheduler_metrics_port: PortOrNone = 0  # the scheduler's own GET /metrics; 0: off
    metrics_socket: Path | None = None  # likewise, on a unix socket; None: off

    @model_validator(mode="after")
    def _check_leader_times(self) -> Self:
        _ascending(
            LEADER_ATTEMPT_S=self.leader_attempt_s,
            LEADER_TRUST_S=self.leader_trust_s,
            LEADER_TTL_S=self.leader_ttl_s,
        )
        return self


class WorkerSettings(RowSettings, PriceSettings):
    models: Words = ()  # local paths or hub ids, org/model or org/model@commit
    lazy_models: Words = ()  # likewise; loaded when work waits for them, in turn where not all fit
    model_residency_s: SecondsOrNone = 60.0  # a lazy model stays so long at least; also between two swaps
    model_idle_s: SecondsOrNone = 600.0  # a lazy model without work is unloaded; 0: when another needs it
    # What all models take of their device, weights, KV and steps; default: what is free there at start.
    device_memory_bytes: Count | None = None
    # Files with models' batching; `model_config` is pydantic's own name.
    model_config_files: Words = ()
    model_downloads: bool = False  # of hub ids that are not in the hub's cache; else workers stay offline
    dtype: str = "auto"
    deterministic: bool = False  # bitwise equal results in any batch; float32 on a CPU
    device: str = "auto"
    capacity: Literal["spot", "on_demand"] = "on_demand"  # this machine's kind
    pools: Words = ()  # this worker also runs jobs that name one of these
    # Of each model, bulk shards that have all the rows in its engine that one may have, and are read ahead.
    shards_max: Count = 3
    rows_in_flight_max: Count = 128  # of one shard
    encoder_rows_in_flight_max: Count = 1024  # likewise: an encoder's passes hold rows of like length
    segment_rows: Count = 64  # a segment is written after this many finished rows …
    segment_interval_s: Seconds = 2.0  # … or this long, whichever comes first
    segment_spacing_s: SecondsOrNone = 0.25  # … but rows that finish faster wait so long for others
    # Between saves of unfinished rows' tokens; 0: only on a drain.
    carry_over_interval_s: SecondsOrNone = 2.0
    online_slots: Count = 256  # online requests held
    engine_max_num_seqs: Count = 128
    engine_num_kv_blocks: Count | None = None
    engine_max_num_batched_tokens: Count = 1024  # per step
    engine_max_model_len: Count | None = None  # prompt and answer together; default: the model's own
    engine_block_size: Count = 32  # tokens per KV block
    prefix_cache_groups: Groups = NO_GROUPS  # of tenants, a+b,c+d; all others share no prefix cache
    engine_gpu_memory_utilization: Share = 0.9  # of a CUDA device, of all the worker's models together
    # On a CPU models step one at a time, each for the same time; default: at once, which has shorter gaps.
    engine_steps_in_turn: bool = False
    engine_attention_backend: str = "auto"  # or torch, native (CPU), triton, varlen (both CUDA)
    engine_weight_dtype: str = "auto"  # or int8
    engine_kv_cache_dtype: str = "auto"  # or float32, bfloat16, float16, int8, fp8 (CUDA)
    # Limits steps with bulk rows beside interactive ones; None: no limit.
    engine_interactive_step_budget_ms: Milliseconds | None = 50.0
    stop_grace_s: SecondsOrNone = 30.0  # for rows in flight after a cancel or the deadline
    drain_s: Seconds = 25.0  # from SIGTERM to exit, at most
    bulk_drain_s: Seconds = 5.0  # of drain_s, until bulk shards are handed back
    # The worker exits when an engine step takes longer; 0: never.
    step_timeout_s: SecondsOrNone = 60.0
    # The worker exits when loading a lazy model takes longer, 100 GB at 60 MB/s; 0: never.
    model_load_timeout_s: SecondsOrNone = 1800.0
    # The worker exits when it receives nothing for this long while messages wait in Redis; 0: never.
    deaf_after_s: SecondsOrNone = 30.0
    spot_provider: Literal["auto", "aws", "gcp", "azure", "none"] = "auto"  # of the notices to read
    spot_metadata_url: HttpUrl = ""  # default: the provider's address
    worker_metrics_port: PortOrNone = 0  # the worker's own GET /metrics; 0: off
    metrics_socket: Path | None = None  # likewise, on a unix socket; None: off
    lease_ttl_s: Seconds = LeaseConfig.ttl_s
    heartbeat_s: Seconds = LeaseConfig.heartbeat_s
    lease_trust_s: Seconds = LeaseConfig.trust_s

    _split = field_validator("models", "lazy_models", "model_config_files", "pools", mode="before")(_split)

    @field_validator("pools")
    @classmethod
    def _check_pools(cls, pools: tuple[str, ...]) -> tuple[str, ...]:
        if odd := [pool for pool in pools if not re.fullmatch(POOL_PATTERN, pool)]:
            raise InvalidSetting(
                f"{PREFIX}POOLS: {odd[0]!r} is no pool's name; take letters, digits, '.', '_' and '-'"
            )
        return pools

    @model_validator(mode="after")
    def _check_lease_times(self) -> Self:
        _ascending(
            HEARTBEAT_S=self.heartbeat_s, LEASE_TRUST_S=self.lease_trust_s, LEASE_TTL_S=self.lease_ttl_s
        )
        return self

    @model_validator(mode="after")
    def _check_bulk_drain(self) -> Self:
        if self.bulk_drain_s > self.drain_s:
            raise InvalidSetting(
                f"{PREFIX}BULK_DRAIN_S is part of {PREFIX}DRAIN_S, and they are "
                f"{self.bulk_drain_s:g} and {self.drain_s:g}"
            )
        return self

    @property
    def lease(self) -> LeaseConfig:
        return LeaseConfig(ttl_s=self.lease_ttl_s, heartbeat_s=self.heartbeat_s, trust_s=self.lease_trust_s)


EVERY_CONCERN: Final[tuple[type[_Settings], ...]] = (
    DataSettings,
    LogSettings,
    QueueSettings,
    ImageSettings,
    LocationSettings,
    SubmissionSettings,
    QuotaSettings,
    RetentionSettings,
    ApiSettings,
    ClientSettings,
    SchedulerSettings,
    WorkerSettings,
)


def check_settings() -> None:
    """Read all settings once, to report a bad one early. Raises InvalidSetting."""
    for concern in EVERY_CONCERN:
        concern()
