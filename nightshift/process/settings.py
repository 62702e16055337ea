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
            raise InvalidSetting("; ".join(_in_words(invalid) for invalid in error.errors())) from error


def _in_words(invalid: Any) -> str:
    """A pydantic error as `NIGHTSHIFT_ONLINE_SLOTS is 'many': it should be a valid integer, …`."""
    says = invalid["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    name = str(invalid["loc"][0])
    value = "not shown here" if name in HOLD_PASSWORDS else repr(invalid["input"])
    return f"{PREFIX}{name.upper()} is {value}: {says}"


def _ascending(**times_s: float) -> None:
    values = list(times_s.values())
    if any(shorter >= longer for shorter, longer in pairwise(values)):
        order = " < ".join(f"{PREFIX}{name}" for name in times_s)
        listed = " and ".join(", ".join(f"{value:g}" for value in values).rsplit(", ", 1))
        raise InvalidSetting(f"{order} must hold, and they are {listed}")


def _at_most(whole: str, whole_s: float, **parts_s: float) -> None:
    for name, value in parts_s.items():
        if value > whole_s:
            raise InvalidSetting(
                f"{PREFIX}{name} ≤ {PREFIX}{whole} must hold, and they are {value:g} and {whole_s:g}"
            )


def _split(value: object) -> object:
    """Splits `a,b,c`; JSON in an environment variable invites quoting mistakes."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


PORT_MAX: Final = 65535
UPSTREAM_ROWS: Final = 1024  # of one shard at upstreams: more than most of them run at once


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
    """Splits and checks ports. Raises ValueError."""
    words = _split(value)
    if isinstance(words, tuple):
        _port_ranges(words)
    return words


def _is_port(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= PORT_MAX


def _cache_groups(value: object) -> object:
    """Splits and parses groups. Raises ValueError."""
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
    """Directory of everything that must not be lost: database, objects and keys, where they have no place of
    their own. `~/.nightshift` by default."""
    database_url: str = Field(default="", repr=False)
    """`sqlite:///…` or `postgresql://…`; a file in the data directory by default."""
    storage_url: str = ""
    """Object store: `file:///…` or `s3://bucket/prefix`; a directory in the data directory by default."""
    secret_key: str = Field(default="", repr=False)
    """Encrypts webhook secrets; the API and the scheduler need the same one. A file in the data directory by
    default."""
    database_pool_size: Count = 10
    """Database connections that a process keeps."""
    database_busy_timeout_s: Seconds = 15.0
    """Longest wait of a writer for SQLite's lock."""
    database_timeout_s: Seconds = 10.0
    """Longest time that PostgreSQL may take for a statement, stay silent, or keep a lock for an idle
    transaction. Migrations are exempt."""

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
    """Least severe level that is logged. No level shows prompts, answers, metadata, file names or keys; a
    warning that repeats within 10 minutes is counted as `repeated` in the next one."""
    log_format: Literal["auto", "human", "json"] = "auto"
    """Form of log lines; `auto` is `human` on a terminal and `json` elsewhere."""


class QueueSettings(_Settings):
    redis_url: RedisUrl = Field(default="redis://127.0.0.1:6379/0", repr=False)
    """The broker: `redis://`, `rediss://` or `redis+socket:///PATH`."""
    publish_timeout_s: Seconds = 1.0
    """Longest time that a broker without an answer delays a submission."""


def _octal(value: object) -> object:
    """`022`, as shells write it."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch("[0-7]{1,4}", value):
        raise ValueError("it should be an octal number, such as 022")
    return int(value, 8)


Umask = Annotated[int, BeforeValidator(_octal), Field(ge=0, le=0o777)]


class LocationSettings(_Settings):
    """The places that jobs may name, and whose they are (`objectstore/tenant_places.py`). None by default."""

    s3_buckets: Words = ()
    """Buckets that jobs may name, none by default: `bucket` belongs to the tenant `default`,
    `acme=bucket/docs` to the tenant acme, and `bucket/{tenant}` gives each tenant the prefix of its name.
    """
    file_roots: Words = ()
    """Directories that jobs may name, in the same form: `/srv/in`, `acme=/srv/acme`, `/srv/{tenant}`. A start
    is refused where two tenants would share a place, and where a place lies in the service's own data."""
    hf_token_tenants: Words = ()
    """Tenants whose jobs read `hf://` datasets with the service's own `HF_TOKEN`, and so all that it may:
    `default,acme`. None by default: public datasets only."""
    output_umask: Umask | None = None
    """Octal umask of outputs in `FILE_ROOTS`, such as `022`; 0: every user may change them. The umask of the
    start by default."""

    _split = field_validator("s3_buckets", "file_roots", "hf_token_tenants", mode="before")(_split)


class ImageSettings(_Settings):
    """The hosts and networks that images may be fetched from which requests name by https."""

    image_allow_cidrs: Cidrs = ()
    """Private networks from which https images may be fetched."""
    image_ports: Ports = ("443",)
    """Only ports from which images may be fetched."""
    image_fetch_s: Seconds = 15.0
    """Longest time to fetch one image, redirects included."""

    _split = field_validator("image_allow_cidrs", mode="before")(_split)

    @property
    def port_ranges(self) -> tuple[range, ...]:
        return _port_ranges(self.image_ports)


ANSWER_BYTES_MAX: Final = 64 * MIB


class RowSettings(_Settings):
    line_bytes_max: Count = 4 * MIB
    """Largest row of an input."""
    answer_bytes_max: Annotated[int, Field(ge=MIB, le=512 * MIB)] = ANSWER_BYTES_MAX
    """Largest answer as JSON, at the most that a request may lead to; a larger one is refused before it runs
    (`answer_too_large`)."""
    segment_interval_s: Seconds = 2.0
    """Time after which a segment is written with fewer rows; a successor of a killed worker runs at most this
    much again. No job has a shorter window."""


class PriceSettings(_Settings):
    """Prices of an hour of a worker, in a currency that the operator knows; None: not known."""

    worker_price_per_hour_spot: Price | None = None
    """Cost of an hour of a spot worker, in your currency; 0: it costs nothing. Jobs then have a `cost`."""
    worker_price_per_hour_on_demand: Price | None = None
    """Cost of an hour of an on-demand worker, in your currency; 0: it costs nothing."""

    @property
    def prices(self) -> Prices:
        return Prices(self.worker_price_per_hour_spot, self.worker_price_per_hour_on_demand)


class SubmissionSettings(RowSettings):
    """Limits on which jobs are accepted, and on how many may wait."""

    models: Words = ()
    lazy_models: Words = ()
    online_queue_max: Limit = 1000
    """Unanswered online requests of a tenant; more get a 429. 0: none is accepted."""
    online_queue_total_max: Limit = 10_000
    """Unanswered online requests of all tenants. 0: none is accepted."""
    bulk_jobs_max: Limit = 1000
    """Unfinished bulk jobs of a tenant; more get a 429. 0: none is accepted."""
    bulk_rows_max: Limit = 100_000_000
    """Rows without a result of a tenant at which further jobs get a 429; a job is accepted whole. 0: none is
    accepted."""
    bulk_rows_total_max: Limit = 1_000_000_000
    """Rows without a result of all tenants at which further jobs get a 429. 0: none is accepted."""
    schedules_max: Limit = 1000
    """Schedules of a tenant. 0: none is accepted."""
    template_bytes_max: Count = 64 * 1024
    """Largest template of a job, as JSON."""
    completion_window_max_s: Annotated[int, Field(ge=1, le=YEARS)] = 30 * 86400
    """Longest completion window."""
    webhook_allow_cidrs: Cidrs = ()
    """Private networks that webhooks may reach, such as `127.0.0.0/8`. The API and the scheduler need the
    same ones, and any tenant can then have requests sent there."""
    webhook_ports: Ports = ("80", "443")
    """Only ports that webhooks may use: numbers and ranges, such as `443,8000-8999`."""

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
    """Requests of a tenant without a quota of its own; unlimited by default, as all quotas are."""
    quota_tokens_per_minute: Quota | None = None
    """Tokens that the online requests of a minute may cost."""
    quota_concurrent_requests: Quota | None = None
    """Requests in progress, in each API process."""
    quota_open_streams: Quota | None = None
    """Streams in progress, in each API process."""
    quota_uploads_in_flight: Quota | None = None
    """Uploads in progress, in each API process."""
    quota_queued_rows: Quota | None = None
    """Rows without a result, online requests among them. The scheduler needs the same value."""
    quota_queued_tokens: Quota | None = None
    """Tokens that these rows may cost. The scheduler needs the same value."""
    quota_stored_files: Quota | None = None
    """Stored files."""
    quota_stored_bytes: Quota | None = None
    """Bytes of stored files, jobs and results."""

    @property
    def defaults(self) -> Quotas:
        return Quotas.from_json(
            {name.removeprefix("quota_"): value for name, value in self.model_dump().items()}
        )


DAY_S: Final = 86_400
# From as long as a client may still be reading its answer; 10 years is as good as for ever.
Retention = Annotated[float, Field(ge=60, le=YEARS, allow_inf_nan=False)]


class RetentionSettings(_Settings):
    """Times for which parts of a job stay after its end, deliveries after their event, and workers after
    their last heartbeat.
    """

    online_job_retention_s: Retention = DAY_S
    """Time that an online job stays after its end, and its `Idempotency-Key` is known."""
    online_body_retention_s: Retention = DAY_S
    """Time that the request and the answer of an online job stay; at most as long as the job."""
    result_retention_s: Retention = 30 * DAY_S
    """Time that the results of a bulk job stay after its end, as OpenAI keeps a batch's files."""
    event_retention_s: Retention = 7 * DAY_S
    """Time that the events of a job stay after its end, except the last."""
    delivery_retention_s: Retention = 30 * DAY_S
    """Time that webhook deliveries stay after their event, which is tried for three days."""
    bulk_job_retention_s: Retention = 90 * DAY_S
    """Time that a bulk job stays after its end."""
    worker_retention_s: Retention = 30 * DAY_S
    """Time that a stopped worker stays listed after its last heartbeat."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        """Refuses parts of a job that would stay longer than the job."""
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
    base_url: str = "http://127.0.0.1:8000"
    """Address of the service, in links and for the command line. Its path is that of the page."""
    body_bytes_max: Count = 4 * MIB
    """Largest JSON body."""
    bodies_bytes_max: Count = 256 * MIB
    """JSON bodies above 64 KiB that an API process holds at a time, at least twice one's; more get a 429."""
    file_bytes_max: Count = 200 * MIB
    """Largest file in one request; more is a 413 that names `POST /v1/uploads`."""
    upload_bytes_max: Count = 8 * 1024 * MIB
    """Largest file that arrives in parts."""
    uploads_pending_max: Count = 100
    """Files of a tenant that may be arriving in parts; more get a 429."""
    online_wait_s: Seconds = 600.0
    """Longest wait for an online answer."""
    ready_needs_worker: bool = False
    """`/readyz` is 503 until a worker has loaded its models."""
    page_idle_s: Annotated[float, Field(ge=60, le=YEARS, allow_inf_nan=False)] = 12 * 3600.0
    """Time after the last click at which a session of the page ends."""
    page_session_s: Annotated[float, Field(ge=60, le=YEARS, allow_inf_nan=False)] = 7 * 86400.0
    """Time after the sign-in at which a session of the page ends."""
    metrics_sockets: Paths = ()
    """Unix sockets of other processes whose metrics `GET /metrics` shows too; `nightshift up` sets it."""

    _split = field_validator("metrics_sockets", mode="before")(_split)


class ClientSettings(_Settings):
    base_url: str = "http://127.0.0.1:8000"
    api_key: str = Field(default="", repr=False)
    """Key of the command line; the file `api_key` in the data directory by default."""


class SchedulerSettings(RowSettings):
    shard_bytes: Count = 256 * 1024
    """Size of a shard."""
    shards_per_job_max: Count = 100_000
    """Shards of a job beside the first of each object; more rows make larger shards."""
    shards_per_page_max: Count = 250
    """Shards recorded in one transaction, for which other writers wait."""
    rows_per_file_max: Count = 50_000
    """Rows of a batch file on the OpenAI routes."""
    embedding_inputs_per_file_max: Count = 50_000
    """Inputs of a batch file for embeddings."""
    attempts_max: Count = 20
    """Charged attempts in a row after which a shard is given up; listing a segment starts the count again.
    `nightshift worker` reads it too."""
    leader_ttl_s: Seconds = 15.0
    """Time after which a silent leader is replaced."""
    leader_trust_s: Seconds = 10.0
    """Time without a renewal after which the leader stops by itself. `LEADER_ATTEMPT_S` < `LEADER_TRUST_S` <
    `LEADER_TTL_S`."""
    leader_attempt_s: Seconds = 3.0
    """Time between attempts to become or to stay the leader."""
    duty_stalled_s: Seconds = 900.0
    """Time without an end of a duty's pass after which `/readyz` names the duty."""
    ring_after_s: Seconds = 10.0
    """Time after which queued work is rung for again."""
    webhook_progress_interval_s: Seconds = 30.0
    """Least time between two `job.progress` events of a job."""
    retention_interval_s: Seconds = 300.0
    """Time between two looks for what has had its time."""
    orphan_age_s: Annotated[float, Field(ge=1, le=YEARS, allow_inf_nan=False)] = 3600.0
    """Least age at which an object that nothing refers to is deleted."""
    scheduler_metrics_port: PortOrNone = 0
    """Port of the scheduler's `/metrics`. 0: none."""
    metrics_socket: Path | None = None
    """Unix socket on which the scheduler or a worker shows its `/metrics`."""

    @model_validator(mode="after")
    def _check_leader_times(self) -> Self:
        _ascending(
            LEADER_ATTEMPT_S=self.leader_attempt_s,
            LEADER_TRUST_S=self.leader_trust_s,
            LEADER_TTL_S=self.leader_ttl_s,
        )
        return self


class WorkerSettings(RowSettings, PriceSettings):
    models: Words = ()
    """Models that a worker serves without `--model`: local paths or hub ids, `org/model@COMMIT` for one
    revision, and LoRA adapters of these as `NAME=MODEL+PATH`. The API and the scheduler accept them before a
    worker has registered."""
    lazy_models: Words = ()
    """Models that a worker loads when work waits for them."""
    upstreams: Words = ()
    """OpenAI-compatible servers whose models a worker serves in place of its own: URLs such as
    `http://gpu-1:8000/v1`, and YAML files (docs/upstreams.md)."""
    model_residency_s: SecondsOrNone = 60.0
    """Least time that a lazy model stays loaded, and between two swaps. 0: they may follow each other at
    once."""
    model_idle_s: SecondsOrNone = 600.0
    """Time without work after which a lazy model is unloaded. 0: it stays until another needs its memory."""
    device_memory_bytes: Count | None = None
    """Memory of the device for all models of a worker, with KV and steps; what is free at the start by
    default."""
    model_config_files: Words = ()
    """YAML files that say how encoders batch."""
    model_downloads: bool = False
    """Workers download hub ids that the hub's cache lacks; else they make no request to the hub."""
    dtype: str = "auto"
    """Torch's name of a dtype. `auto` computes a bfloat16 checkpoint in bfloat16, unless a measurement on the
    CPU finds that slower, and others in float32 on a CPU."""
    deterministic: bool = False
    """The same bits however rows are batched, cut, preempted or resumed: plain decoders in float32, on a CPU
    with a C++ compiler."""
    device: str = "auto"
    """Torch's name of a device, such as `cuda:1`; `auto` is CUDA where there is a device."""
    capacity: Literal["spot", "on_demand"] = "on_demand"
    """Kind of machine that a worker runs on; it runs jobs whose `capacity` is that or `any`."""
    pools: Words = ()
    """Pools that a worker belongs to, such as `nightly,h100`; it also runs jobs that name one of them."""
    shards_max: Count = 3
    """Bulk shards of each model whose rows are in its engine or read ahead."""
    rows_in_flight_max: Count | None = None
    """Rows of one shard inside a decoder's engine; by default as many as `ENGINE_MAX_NUM_SEQS`, which keep it
    full."""
    encoder_rows_in_flight_max: Count = 1024
    """Rows of one shard inside an encoder or a classifier, whose passes hold rows of like length."""
    segment_rows: Count = 64
    """Finished rows after which a segment is written."""
    segment_spacing_s: SecondsOrNone = 0.25
    """Time that rows which finish faster wait for others, up to 4,096 rows. 0: not at all."""
    carry_over_interval_s: SecondsOrNone = 2.0
    """Time between saves of unfinished rows' tokens; a killed worker's successor generates at most this much
    of a row again. 0: only on a drain."""
    online_slots: Count = 256
    """Online requests that a worker holds; one tenant has at most about three quarters of them."""
    engine_tensor_parallel_size: Count = 1
    """GPUs of one machine on which each worker computes its text models together, each GPU a part of every
    layer; docs/gpus.md says of which models."""
    engine_max_num_seqs: Count = 128
    """Sequences that run at once."""
    engine_max_loras: Count = 16
    """LoRA adapters of a model on the device at a time, at most as many as there are."""
    engine_num_kv_blocks: Count | None = None
    """KV blocks of each text model, instead of its part of the memory."""
    engine_max_num_batched_tokens: Count = 1024
    """Tokens of one engine step."""
    engine_max_model_len: Count | None = None
    """Tokens of prompt and answer together; the model's own limit by default. Less leaves KV for more
    sequences."""
    engine_block_size: Count = 32
    """Tokens of a KV block."""
    prefix_cache_groups: Groups = NO_GROUPS
    """Tenants that share a prefix cache, such as `search+ads,legal+audit`; none by default."""
    engine_gpu_memory_utilization: Share = 0.9
    """Share of a CUDA device's memory for all models of a worker. Workers that share a device need shares
    that add up to less than 1."""
    engine_steps_in_turn: bool = False
    """Models of a worker step one at a time on a CPU, each for the same time, instead of at once."""
    engine_process: bool | None = None
    """Whether the engine of a worker's only model, a decoder, has a process of its own, beside the worker's.
    By default it has on two cores or more, and takes some hundred MB more."""
    engine_attention_backend: str = "auto"
    """`torch`, `native` (CPU), `triton` or `varlen` (CUDA), or `auto`."""
    engine_weight_dtype: str = "auto"
    """`int4`, `int8` or `fp8` (CUDA devices from compute capability 8.9 on) rounds the weights of linear
    layers, and so takes a quarter or half of bfloat16's memory. auto: they stay as they are stored."""
    engine_kv_cache_dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, `int8`, or `fp8` (CUDA devices from compute capability 8.9 on, with
    Triton; as small as `int8`, and less exact). auto: that of the computation."""
    engine_speculation: Literal["auto", "off"] = "off"
    """`auto` drafts tokens from the prompt, the outputs of the same job and the grammar, where the times of
    steps say that it pays. Outputs stay the same."""
    engine_draft_model: str | None = None
    """A smaller decoder that drafts tokens too, by path or hub id: of a worker whose text model has the same
    tokenizer. It needs `ENGINE_SPECULATION=auto`, and memory for its weights and KV."""
    engine_interactive_step_budget_ms: Milliseconds | None = 50.0
    """Time of a step to which bulk rows are limited while there are interactive requests. Lower: earlier
    first tokens, less bulk."""
    stop_grace_s: SecondsOrNone = 30.0
    """Time that rows in flight may still run after a cancel or the deadline. 0: they end at once."""
    drain_s: Seconds = 25.0
    """Longest time from SIGTERM to the exit; give the supervisor and the container more."""
    bulk_drain_s: Seconds = 5.0
    """Part of `DRAIN_S` within which bulk shards are handed back."""
    step_timeout_s: SecondsOrNone = 60.0
    """Length of an engine step after which the worker ends itself and is restarted. 0: it does not."""
    model_load_timeout_s: SecondsOrNone = 1800.0
    """Length of a lazy model's load after which the worker ends itself. 0: it does not."""
    deaf_after_s: SecondsOrNone = 30.0
    """Time without a message, while Redis has some, after which the worker ends itself. 0: it does not."""
    spot_provider: Literal["auto", "aws", "gcp", "azure", "none"] = "auto"
    """Cloud whose interruption notices a worker reads; `auto` asks the machine's firmware."""
    spot_metadata_url: HttpUrl = ""
    """Address of the metadata server, where it is not the cloud's own."""
    worker_metrics_port: PortOrNone = 0
    """Port of a worker's `/metrics`; workers on one machine need one each. 0: none."""
    metrics_socket: Path | None = None
    lease_ttl_s: Seconds = LeaseConfig.ttl_s
    """Time after which a lease that is not renewed may be given away."""
    heartbeat_s: Seconds = LeaseConfig.heartbeat_s
    """Time between renewals of leases."""
    lease_trust_s: Seconds = LeaseConfig.trust_s
    """Time after a renewal at which a worker stops writing. `HEARTBEAT_S` < `LEASE_TRUST_S` < `LEASE_TTL_S`.
    """

    _split = field_validator(
        "models", "lazy_models", "upstreams", "model_config_files", "pools", mode="before"
    )(_split)

    @field_validator("pools")
    @classmethod
    def _check_pools(cls, pools: tuple[str, ...]) -> tuple[str, ...]:
        if odd := [pool for pool in pools if not re.fullmatch(POOL_PATTERN, pool)]:
            raise InvalidSetting(
                f"{PREFIX}POOLS: {odd[0]!r} is no pool's name; take letters, digits, '.', '_' and '-'"
            )
        return pools

    @property
    def decoder_rows_in_flight_max(self) -> int:
        """Rows of a shard at a decoder, by default as many as can run at once."""
        return self.rows_in_flight_max or (UPSTREAM_ROWS if self.upstreams else self.engine_max_num_seqs)

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
    """Reads all settings once, to report a bad one early. Raises InvalidSetting."""
    for concern in EVERY_CONCERN:
        concern()
