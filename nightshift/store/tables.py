"""The tables, as the migrations create them.

Times are milliseconds since the epoch in a BIGINT, so both databases compare and calculate alike, without
time zones; `UtcTimestamp` makes them aware datetimes. Frequently written rows (`shard`) are apart from
payload (`request`, `result`). A column added after the first release is nullable or has a server default:
processes of the previous release insert during an upgrade.
"""

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcTimestamp(TypeDecorator[datetime]):
    """An aware datetime, stored as milliseconds since the epoch."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else to_ms(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return None if value is None else from_ms(value)


def to_ms(at: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime."""
    assert at.tzinfo is not None, f"a naive datetime reached the store: {at!r}"
    return round(at.timestamp() * 1000)


def from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


# SQLite increments only an INTEGER primary key.
_Serial = BigInteger().with_variant(Integer, "sqlite")
_Id = String(40)
_Rows = JSON(none_as_null=True)  # row numbers in the shard


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of the rows that meet a condition."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


api_key = Table(
    "api_key",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part of the key
    Column("tenant_id", _Id, nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("key_sha256", String(64), nullable=False),  # keys are random: no slow hash is needed
    Column("last4", String(4), nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("expires_at", UtcTimestamp),
    Column("revoked_at", UtcTimestamp),
    Column("scopes", String(64), nullable=False, server_default="read,submit"),
    Column("replaced_by", String(16)),  # the key that it was rotated to
    Index("ix_api_key_listing", "tenant_id", "created_at", "id"),
)

# Who is signed in to the page. A session ends with its key.
page_session = Table(
    "page_session",
    metadata,
    Column("token_sha256", String(64), primary_key=True),  # the token has 256 random bits, as a key's secret
    Column("key_id", String(16), ForeignKey("api_key.id"), nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("used_at", UtcTimestamp, nullable=False),  # last, to a minute or so
    Index("ix_page_session_of_key", "key_id", "created_at"),
    Index("ix_page_session_used", "used_at"),
)

tenant = Table(
    "tenant",
    metadata,
    Column("id", _Id, primary_key=True),  # its name
    Column("description", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("disabled_at", UtcTimestamp),
    Column("priority_ceiling", String(12), nullable=False, server_default="interactive"),
    Column("quotas", JSON(none_as_null=True)),  # its own quotas, by name
    Column("deleted_at", UtcTimestamp),  # the row stays, so that no other tenant gets the name
    Index("ix_tenant_listing", "created_at", "id"),
)

# Sums of what is recorded; nothing is counted by reading results.
usage = Table(
    "usage",
    metadata,
    Column("tenant_id", _Id, primary_key=True),
    Column("day", String(10), primary_key=True),  # 2026-11-30, UTC
    Column("model", Text, primary_key=True),
    Column("succeeded", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default=text("0")),
)

# What a tenant has, in several rows whose sums count.
holding = Table(
    "holding",
    metadata,
    Column("tenant_id", _Id, primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("stored_files", BigInteger, nullable=False, server_default=text("0")),
    Column("stored_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("online_requests", BigInteger, nullable=False, server_default=text("0")),
    Column("bulk_jobs", BigInteger, nullable=False, server_default=text("0")),
    Column("bulk_rows", BigInteger, nullable=False, server_default=text("0")),
    Column("queued_tokens", BigInteger, nullable=False, server_default=text("0")),
)

# What administrators did. Entries are never changed.
audit = Table(
    "audit",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("at", UtcTimestamp, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(32), nullable=False),
    Column("tenant_id", _Id),  # None: the whole service's
    Column("object_id", Text),
    Column("details", JSON, nullable=False),
    Index("ix_audit_listing", "tenant_id", "id"),
)

tenant_secret = Table(
    "tenant_secret",
    metadata,
    Column("tenant_id", _Id, primary_key=True),
    Column("webhook_secret", LargeBinary, nullable=False),  # encrypted
    Column("created_at", UtcTimestamp, nullable=False),
)

file = Table(
    "file",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant_id", _Id, nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("filename", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("expires_at", UtcTimestamp),
    Index("ix_file_listing", "tenant_id", "created_at", "id"),
    Index("ix_file_expiry", "expires_at", "id"),
)

# Files that arrive in parts, and the parts that have arrived.
upload = Table(
    "upload",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant_id", _Id, nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("filename", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),  # as announced
    Column("created_at", UtcTimestamp, nullable=False),
    Column("expires_at", UtcTimestamp, nullable=False),
    Column("file_expires_after_s", Integer),
    Column("status", String(12), nullable=False),
    Column("file_id", _Id),  # file of a completed upload
    Index("ix_upload_due", "status", "expires_at"),
    Index("ix_upload_tenant", "tenant_id", "status", "expires_at"),
)

upload_part = Table(
    "upload_part",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("upload_id", _Id, ForeignKey("upload.id"), nullable=False, index=True),
    Column("tenant_id", _Id, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
)


def _ended(name: str, *, without: str) -> Index:
    """A tenant's ended jobs that still have something, the first to end first."""
    kept = f"finished_at IS NOT NULL AND {without} IS NULL"
    return _partial(name, "tenant_id", "kind", "finished_at", "id", where=kept)


IN_QUEUE: Final = "state IN ('queued', 'running') AND paused_at IS NULL"  # jobs of which rows may start

ONLINE_UNCLAIMED: Final = "kind = 'online' AND state = 'queued'"

WRITES_OUTPUT: Final = "output_place IS NOT NULL AND state IN ('queued', 'running', 'finalizing')"

job = Table(
    "job",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant_id", _Id, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("face", String(8), nullable=False),
    Column("state", String(12), nullable=False),
    Column("priority", String(12), nullable=False),
    Column("priority_rank", Integer, nullable=False),
    Column("model", Text),
    Column("spec", JSON, nullable=False),
    Column("fingerprint", String(64), nullable=False),  # digest of the request, to recognise a repeat
    Column("rows_total", BigInteger),
    Column("rows_estimated", BigInteger),
    Column("rows_succeeded", BigInteger, nullable=False, default=0),
    Column("rows_failed", BigInteger, nullable=False, default=0),
    Column("prompt_tokens", BigInteger, nullable=False, default=0),
    Column("completion_tokens", BigInteger, nullable=False, default=0),
    Column("cached_tokens", BigInteger, nullable=False, default=0),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("deadline_at", UtcTimestamp, nullable=False),
    Column("runtime_deadline_at", UtcTimestamp),  # first claim + max_runtime
    Column("planned_at", UtcTimestamp),
    Column("started_at", UtcTimestamp),
    Column("finalizing_at", UtcTimestamp),
    Column("finished_at", UtcTimestamp),
    Column("stop_reason", String(12)),
    Column("stop_requested_at", UtcTimestamp),
    Column("errors", JSON),
    Column("output_file_id", _Id),
    Column("error_file_id", _Id),
    Column("webhook_secret", LargeBinary),  # encrypted; None: the tenant's own signs
    Column("event_seq", Integer, nullable=False, default=0),  # the last event's number
    Column("capacity", String(12), nullable=False, server_default="any"),  # capacity of its workers
    Column("pool", String(63)),  # likewise; None: of any
    Column("tokens_redone", BigInteger, nullable=False, server_default=text("0")),  # generated twice
    Column("rows_reused", BigInteger, nullable=False, server_default=text("0")),  # rows with another's result
    Column("rows_unlisted", BigInteger, nullable=False, server_default=text("0")),  # not run, without a line
    Column("tokens_queued", BigInteger, nullable=False, server_default=text("0")),  # counted until it ends
    Column("stored_bytes", BigInteger, nullable=False, server_default=text("0")),  # see `Holding`
    Column("worker_ms_spot", BigInteger, nullable=False, server_default=text("0")),  # time of workers taken
    Column("worker_ms_on_demand", BigInteger, nullable=False, server_default=text("0")),
    Column("output_place", String(64)),  # a digest of the folder that it writes to
    Column("output_upload", JSON(none_as_null=True)),  # its manifest's, as begun last by a leader
    Column("output_problem", JSON(none_as_null=True)),  # why its manifest, or its files, could not be written
    Column("input_fault", JSON(none_as_null=True)),  # why its input could not be planned the last time
    Column("current_problem", JSON(none_as_null=True)),  # as its owner was last told
    Column("problem_changes", Integer, nullable=False, server_default=text("0")),  # how often that changed
    # These two say that there is something to cut or to list: they may miss a shard, and no part.
    Column("shards_ended", Integer, nullable=False, server_default=text("0")),
    Column("parts_written", Integer, nullable=False, server_default=text("0")),
    Column("planning_attempts", Integer, nullable=False, server_default=text("0")),  # without a known end
    Column("plan_page", Integer, nullable=False, server_default=text("0")),  # pages of shards recorded
    Column("plan_cursor", JSON(none_as_null=True)),  # where the next begins; None: at the input's, or all cut
    Column("name", String(100)),  # the spec's, to list by
    Column("paused_at", UtcTimestamp),
    Column("window_turns_at", UtcTimestamp),  # its window ends, or opens if it is paused; None: nothing does
    Column("urgent_at", UtcTimestamp),  # from when it counts as one class better; None: by its deadline alone
    Column("outlook", String(12)),  # as its owner was told last; None: nothing in this night
    Column("results_deleted_at", UtcTimestamp),  # an online job's request and answer, a bulk job's segments
    Column("events_deleted_at", UtcTimestamp),  # all but the last
    Column("deleted_at", UtcTimestamp),  # no tenant finds it any more; what it has is being deleted
    Column("retry_of", _Id),  # no foreign key: the earlier job may be deleted
    Column("traceparent", String(55)),  # the span that submitted it; None: it is not traced
    # The columns behind `id` are those of the other filters: they are compared in the index, and only what is
    # wanted is read from the table. The state is behind none, since it changes most often.
    Index("ix_job_listing", "tenant_id", "kind", "created_at", "id", "priority", "model"),
    _partial(
        "ix_job_batches",
        "tenant_id",
        "kind",
        "face",
        "created_at",
        "id",
        where="kind = 'bulk' AND face = 'openai'",
    ),
    Index("ix_job_of_model", "tenant_id", "model", "created_at", "id", "kind", "priority"),
    _partial("ix_job_of_name", "tenant_id", "name", "created_at", "id", where="name IS NOT NULL"),
    _partial("ix_job_retries", "retry_of", "created_at", where="retry_of IS NOT NULL"),
    Index("ix_job_of_priority", "tenant_id", "priority", "created_at", "id", "kind", "model"),
    Index("ix_job_newest", "tenant_id", "created_at", "id"),
    Index("ix_job_of_state", "tenant_id", "state", "created_at", "id", "kind", "priority", "model"),
    Index("ix_job_active", "state", "kind", "priority_rank"),
    _partial(
        "ix_job_queue",
        "kind",
        "priority_rank",
        "created_at",
        "state",  # these two for SQLite, which reads the row for columns that only the condition names
        "paused_at",
        where=IN_QUEUE,
    ),
    # The last column is to be summed.
    Index("ix_job_repeat", "tenant_id", "fingerprint", "created_at", "stored_bytes"),
    _partial(
        "ix_job_online_unclaimed",
        "model",
        "priority",
        "capacity",
        "created_at",
        "deadline_at",
        where=ONLINE_UNCLAIMED,
    ),
    _partial(
        "ix_job_output_place",
        "output_place",
        unique=True,  # one job writes to a folder
        where=WRITES_OUTPUT,
    ),
    _partial("ix_job_window", "window_turns_at", where="window_turns_at IS NOT NULL"),
    _ended("ix_job_ended", without="deleted_at"),
    _ended("ix_job_with_results", without="results_deleted_at"),
    _ended("ix_job_with_events", without="events_deleted_at"),
)

# What is still to be deleted of ended jobs. Recorded with the change that makes it unreachable.
deletion = Table(
    "deletion",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("tenant_id", _Id, nullable=False),
    Column("job_id", _Id, nullable=False),
    Column("part", String(8), nullable=False),  # results, events, or the whole job
    Column("recorded_at", UtcTimestamp, nullable=False),
    Index("ix_deletion_of_tenant", "tenant_id", "id"),
)

WITH_FAULT: Final = "fault IS NOT NULL"

# Shards that may become parts of an output.
TO_CUT: Final = "kind = 'bulk' AND part_first_shard IS NULL AND state IN ('done', 'stopped', 'failed')"

shard = Table(
    "shard",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("tenant_id", _Id, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("model", Text, nullable=False),
    Column("shard_no", Integer, nullable=False),
    Column("state", String(8), nullable=False),
    Column("term", Integer, nullable=False, default=0),
    Column("worker_id", _Id),
    Column("lease_until", UtcTimestamp),
    Column("not_before", UtcTimestamp),
    Column("attempts", Integer, nullable=False, default=0),
    # Attempts that had ended when the last one to make progress began.
    Column("attempts_before", Integer, nullable=False, server_default=text("0")),
    Column("crash_count", Integer, nullable=False, default=0),
    Column("enqueued_at", UtcTimestamp, nullable=False),
    Column("signalled_at", UtcTimestamp),  # when a ring was last sent for it
    Column("rows_done", BigInteger, nullable=False, default=0),
    Column("rows_total", BigInteger),
    Column("rows_estimated", BigInteger),
    Column("first_row", BigInteger),
    Column("uri", Text, nullable=False),
    Column("format", String(16), nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("end", BigInteger),
    Column("carry_over_key", Text),
    Column("capacity", String(12), nullable=False, server_default="any"),  # the job's, for the claim to see
    Column("source_etag", Text),  # the input object's when planned
    Column("objects", JSON(none_as_null=True)),  # [uri, etag] of each that is a row; None: `uri` has the rows
    Column("tokens_in_flight", BigInteger, nullable=False, server_default=text("0")),  # from the last renewal
    Column("faults", Integer, nullable=False, server_default=text("0")),  # external, since the last segment
    Column("suspects", _Rows),  # rows in flight in this term, journalled before they began
    Column("is_isolating", Boolean, nullable=False, server_default=false()),  # its rows run alone, one by one
    Column("part_first_shard", Integer),  # first shard of its part of the output; None: it is in none yet
    Column("result_bytes", BigInteger, nullable=False, server_default=text("0")),  # of listed segments
    Column("interruption", JSON(none_as_null=True)),  # how the last lease ended that did not end the shard
    Column("fault", JSON(none_as_null=True)),  # what was met in its work, since the last segment
    UniqueConstraint("job_id", "shard_no"),
    _partial("ix_shard_fault", "job_id", "shard_no", where=WITH_FAULT),
    Index("ix_shard_claim", "job_id", "state", "shard_no"),
    Index("ix_shard_state", "state", "kind", "tenant_id"),
    Index("ix_shard_worker", "worker_id", "state"),
    _partial("ix_shard_to_cut", "job_id", "shard_no", where=TO_CUT),
)

PART_LEASED: Final = "state = 'leased'"
PART_WITH_UPLOADS: Final = "uploads IS NOT NULL"
PART_WITH_PROBLEM: Final = "problem IS NOT NULL"

# Runs of a native job's shards, and the files written of them.
output_part = Table(
    "output_part",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("tenant_id", _Id, nullable=False),
    Column("first_shard", Integer, nullable=False),
    Column("last_shard", Integer, nullable=False),  # inclusive
    Column("state", String(8), nullable=False),
    Column("term", Integer, nullable=False, default=0),
    Column("owner", _Id),
    Column("lease_expires_at", UtcTimestamp),
    Column("not_before", UtcTimestamp),
    Column("attempts", Integer, nullable=False, default=0),
    Column("uploads", JSON(none_as_null=True)),  # begun by the last owner; None once written
    Column("files", JSON(none_as_null=True)),  # None until written
    Column("problem", JSON(none_as_null=True)),  # the last try's
    Column("rows", BigInteger, nullable=False, default=0),
    Column("succeeded", BigInteger, nullable=False, default=0),
    Column("failed", BigInteger, nullable=False, default=0),
    Column("created_at", UtcTimestamp, nullable=False),
    UniqueConstraint("job_id", "first_shard"),
    Index("ix_output_part_of_job", "job_id", "state", "first_shard"),
    _partial("ix_output_part_leased", "lease_expires_at", "tenant_id", where=PART_LEASED),
    _partial("ix_output_part_uploads", "job_id", where=PART_WITH_UPLOADS),
    _partial("ix_output_part_problem", "job_id", "not_before", where=PART_WITH_PROBLEM),
)

HAS_FAILURES: Final = "failed > 0"

segment = Table(
    "segment",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("shard_id", _Id, ForeignKey("shard.id"), nullable=False),
    Column("term", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("succeeded", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("output_bytes", BigInteger),  # None: not counted
    Column("reused", Integer, nullable=False, server_default=text("0")),  # rows with another's result …
    Column("earlier", Integer, nullable=False, server_default=text("0")),  # not written or read any more
    UniqueConstraint("shard_id", "term", "seq"),
    Index("ix_segment_job", "job_id", "id"),
    _partial("ix_segment_with_failures", "job_id", "id", where=HAS_FAILURES),
)

request = Table(
    "request",
    metadata,
    Column("shard_id", _Id, ForeignKey("shard.id"), primary_key=True),
    Column("body", JSON, nullable=False),
)

result = Table(
    "result",
    metadata,
    Column("shard_id", _Id, ForeignKey("shard.id"), primary_key=True),
    Column("status_code", Integer, nullable=False),
    Column("body", JSON, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default=text("0")),
)

# What happens to a job now and then, which a person looks for among thousands of checkpoints. None of these
# is an event of an ordinary online request.
IS_MILESTONE: Final = (
    "type IN ('job.planned', 'job.updated', 'job.paused', 'job.resumed', 'job.stopping', 'job.finalizing', "
    "'job.shard_lost', 'job.shard_returned', 'job.shard_resumed', 'job.problem')"
)

event = Table(
    "event",
    metadata,
    Column("job_id", _Id, ForeignKey("job.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),  # 1, 2, 3 … without gaps
    Column("type", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    _partial("ix_event_milestone", "job_id", "seq", where=IS_MILESTONE),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("kind", String(8), nullable=False),  # which ring: online (one shard) or bulk (there is work)
    Column("shard_id", _Id),
    Column("priority_rank", Integer, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
)

# Receivers that tenants have registered for types of events.
webhook_endpoint = Table(
    "webhook_endpoint",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant_id", _Id, nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("event_types", JSON, nullable=False),  # names and wildcards
    Column("secret", LargeBinary, nullable=False),  # encrypted
    Column("secret_hint", String(16), nullable=False),
    Column("previous_secret", LargeBinary),  # encrypted; signs too until …
    Column("previous_secret_until", UtcTimestamp),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),  # when configuration or secret last changed
    Column("failing_since", UtcTimestamp),  # the first failed attempt since the last success
    Column("disabled_at", UtcTimestamp),  # None: it gets events
    Column("disabled_reason", String(16)),
    Index("ix_webhook_endpoint_listing", "tenant_id", "created_at", "id"),
)

delivery = Table(
    "delivery",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("event_id", _Id, nullable=False),
    Column("tenant_id", _Id, nullable=False),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("event_type", String(32), nullable=False),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(12), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_at", UtcTimestamp, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("delivered_at", UtcTimestamp),
    Column("endpoint_id", _Id),  # None: owed to the job's own URL. The endpoint may have been deleted
    Column("attempts_before", Integer, nullable=False, server_default=text("0")),  # before the last replay
    Column("replayed_at", UtcTimestamp),  # last
    Index("ix_delivery_due", "state", "next_at", "created_at"),  # the last one for metrics
    Index("ix_delivery_listing", "tenant_id", "created_at", "id"),
    Index("ix_delivery_of_job", "job_id", "tenant_id", "created_at", "id"),
    Index("ix_delivery_of_endpoint", "tenant_id", "endpoint_id", "created_at", "id"),
    Index("ix_delivery_of_endpoint_state", "tenant_id", "endpoint_id", "state", "created_at", "id"),
    Index("ix_delivery_of_state", "tenant_id", "state", "created_at", "id"),
)

delivery_attempt = Table(
    "delivery_attempt",
    metadata,
    Column("delivery_id", _Id, ForeignKey("delivery.id"), primary_key=True),
    Column("attempt_no", Integer, primary_key=True, autoincrement=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("latency_ms", Integer, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("response_head", Text),
    Column("retry_after_s", Integer),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant_id", _Id, primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("body", JSON, nullable=False),
    Column("expires_at", UtcTimestamp, nullable=False, index=True),
    Index("ix_idempotency_of_job", "job_id"),
)

worker = Table(
    "worker",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("state", String(12), nullable=False),
    Column("models", JSON, nullable=False),  # models that it can serve
    Column("warm_models", JSON),  # models that are loaded, or being loaded; None: all
    Column("started_at", UtcTimestamp, nullable=False),
    Column("heartbeat_at", UtcTimestamp, nullable=False),
    Column("capacity", String(12), nullable=False, server_default="on_demand"),
    Column("drain_requested_at", UtcTimestamp),
    Column("notice_kind", String(16)),  # the cloud's notice about its machine
    Column("notice_at", UtcTimestamp),  # when it was recorded first
    Column("notice_ends_at", UtcTimestamp),  # when the machine goes; None: the cloud does not say
    Column("ended_at", UtcTimestamp),
    Column("ended_cause", String(24)),
    Column("lost_at", UtcTimestamp),  # when its loss was counted
    Column("figures", JSON(none_as_null=True)),  # its figures at the last heartbeat; None: it tells none
    Column("pools", JSON),  # names of its pools
    Index("ix_worker_listing", "state", "started_at", "id"),
    Index("ix_worker_heard_of", "heartbeat_at"),  # ended workers stay for a while
)

IS_DUE: Final = "next_at IS NOT NULL"
IS_CHECKED: Final = "check_at IS NOT NULL"
IS_UNDER_WAY: Final = "state IN ('waiting', 'submitted')"
FOLLOWS: Final = "after IS NOT NULL"

# Plans that tenants have applied.
schedule = Table(
    "schedule",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant_id", _Id, nullable=False),
    Column("name", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("after", String(100)),  # the name of the schedule that it follows
    Column("key_id", String(16), nullable=False),  # the key that last applied it
    Column("created_at", UtcTimestamp, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("paused_at", UtcTimestamp),
    Column("next_at", UtcTimestamp),  # the first instant that is not recorded
    Column("problem", JSON(none_as_null=True)),
    UniqueConstraint("tenant_id", "name"),
    Index("ix_schedule_listing", "tenant_id", "created_at", "id"),
    _partial("ix_schedule_due", "next_at", "id", where=IS_DUE),
    _partial("ix_schedule_follower", "tenant_id", "after", where=FOLLOWS),
)

schedule_version = Table(
    "schedule_version",
    metadata,
    Column("schedule_id", _Id, ForeignKey("schedule.id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("key_id", String(16), nullable=False),  # the key that applied it
    Column("fingerprint", String(64), nullable=False),  # digest of what was sent
    Column("plan", JSON, nullable=False),
    Column("job", JSON, nullable=False),  # as sent
    Column("webhook", JSON(none_as_null=True)),  # likewise, without its secret
    Column("spec", JSON, nullable=False),  # the checked job, with its variables
    Column("priority", String(12), nullable=False),
    Column("webhook_secret", LargeBinary),  # encrypted
)

# An instant of a schedule: no other transaction can make a second run of it.
schedule_run = Table(
    "schedule_run",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("schedule_id", _Id, ForeignKey("schedule.id"), nullable=False),
    Column("tenant_id", _Id, nullable=False),
    Column("version", Integer, nullable=False),
    Column("follows", _Id),  # the schedule whose run of the same instant must have succeeded
    Column("due_at", UtcTimestamp, nullable=False),  # the instant
    Column("local_date", String(10), nullable=False),
    Column("state", String(12), nullable=False),
    Column("check_at", UtcTimestamp),  # from when it is looked at; None: it is not, or something wakes it
    Column("job_id", _Id),  # no foreign key: the job may be deleted
    Column("output", Text),
    Column("started_at", UtcTimestamp),
    Column("ended_at", UtcTimestamp),
    Column("reason", Text),
    UniqueConstraint("schedule_id", "due_at"),
    _partial("ix_schedule_run_check", "check_at", "id", where=IS_CHECKED),
    _partial("ix_schedule_run_under_way", "schedule_id", "due_at", where=IS_UNDER_WAY),
    _partial("ix_schedule_run_followed", "follows", "due_at", where=IS_UNDER_WAY),
    _partial("ix_schedule_run_of_job", "job_id", where=IS_UNDER_WAY),
)

# Figures of the whole service, at intervals.
service_figure = Table(
    "service_figure",
    metadata,
    Column("at", UtcTimestamp, primary_key=True, autoincrement=False),
    Column("figures", JSON, nullable=False),
)

model = Table(
    "model",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("context_length", Integer),
    Column("revision", Text, nullable=False),
    Column("dtype", String(16)),
    Column("dimensions", Integer),
    Column("output_sizes", JSON(none_as_null=True)),  # None: not known
    Column("position", Integer, nullable=False, default=0),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("parent", String(255)),  # the model that an adapter changes
)

leadership = Table(
    "leadership",
    metadata,
    Column("duty", String(32), primary_key=True),
    Column("leader_id", _Id, nullable=False),
    Column("term", Integer, nullable=False),
    Column("expires_at", UtcTimestamp, nullable=False),
    Column("stalled", String(64)),  # a part of the leader's work that stands still, as it last said
)

# Rows in flight at a worker's loss, and how often. A finished row has none.
row_crash = Table(
    "row_crash",
    metadata,
    Column("shard_id", _Id, ForeignKey("shard.id"), primary_key=True),
    Column("row", BigInteger, primary_key=True, autoincrement=False),
    Column("crashes", Integer, nullable=False),
    Column("explained", Integer, nullable=False),  # crashes in which the worker itself failed
    Column("last_cause", String(24), nullable=False),
    Column("lost_before", BigInteger, nullable=True),  # unused
)

# Rows that crash their workers and are not run again.
dead_row = Table(
    "dead_row",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant_id", _Id, nullable=False),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("shard_id", _Id, ForeignKey("shard.id"), nullable=False),
    Column("row", BigInteger, nullable=False),
    Column("custom_id", Text),
    Column("cause", String(24), nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("worker_id", _Id),  # the last one it killed
    Column("died_at", UtcTimestamp, nullable=False),
    Column("state", String(12), nullable=False),
    Column("decided_at", UtcTimestamp),  # replayed or discarded
    Column("replay_job_id", _Id),
    UniqueConstraint("shard_id", "row"),
    Index("ix_dead_row_newest", "tenant_id", "died_at", "id"),
    Index("ix_dead_row_listing", "tenant_id", "state", "died_at", "id"),
    Index("ix_dead_row_of_job", "job_id", "died_at", "id"),
)

# Receivers that answered 410 and get no more events.
gone_endpoint = Table(
    "gone_endpoint",
    metadata,
    Column("tenant_id", _Id, primary_key=True),
    Column("url_sha256", String(64), primary_key=True),
    Column("url", Text, nullable=False),
    Column("gone_at", UtcTimestamp, nullable=False),
)

# Sums over the whole service, for metrics.
counter = Table(
    "counter",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
