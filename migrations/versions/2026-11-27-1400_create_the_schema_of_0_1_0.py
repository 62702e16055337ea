"""Create the schema of 0.1.0: jobs and their shards, files, keys, workers, deliveries.

It replaces 46 migrations that no release had, and has the number of the last: a database that has them all
goes on from here. Columns are in the order in which those added them.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0046"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_MILESTONES = (
    "job.planned",
    "job.updated",
    "job.paused",
    "job.resumed",
    "job.stopping",
    "job.finalizing",
    "job.shard_lost",
    "job.shard_returned",
    "job.shard_resumed",
    "job.problem",
)


def _serial() -> sa.types.TypeEngine[int]:
    """SQLite increments only an INTEGER primary key."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _where(condition: str) -> dict[str, Any]:
    """The rows of a partial index."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_sha256", sa.String(length=64), nullable=False),
        sa.Column("last4", sa.String(length=4), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("scopes", sa.String(length=64), server_default="read,submit", nullable=False),
        sa.Column("replaced_by", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
    )
    op.create_index("ix_api_key_listing", "api_key", ["tenant_id", "created_at", "id"])
    op.create_index("ix_api_key_tenant_id", "api_key", ["tenant_id"])

    op.create_table(
        "audit",
        sa.Column("id", _serial(), autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=True),
        sa.Column("object_id", sa.Text(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_listing", "audit", ["tenant_id", "id"])

    op.create_table(
        "counter",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counter"),
    )

    op.create_table(
        "deletion",
        sa.Column("id", _serial(), autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("part", sa.String(length=8), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deletion"),
    )
    op.create_index("ix_deletion_of_tenant", "deletion", ["tenant_id", "id"])

    op.create_table(
        "file",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_file"),
    )
    op.create_index("ix_file_expiry", "file", ["expires_at", "id"])
    op.create_index("ix_file_listing", "file", ["tenant_id", "created_at", "id"])

    op.create_table(
        "gone_endpoint",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("url_sha256", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("gone_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "url_sha256", name="pk_gone_endpoint"),
    )

    op.create_table(
        "holding",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stored_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("online_requests", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bulk_jobs", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bulk_rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("queued_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "slot", name="pk_holding"),
    )

    op.create_table(
        "job",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("face", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("priority", sa.String(length=12), nullable=False),
        sa.Column("priority_rank", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("rows_total", sa.BigInteger(), nullable=True),
        sa.Column("rows_estimated", sa.BigInteger(), nullable=True),
        sa.Column("rows_succeeded", sa.BigInteger(), nullable=False),
        sa.Column("rows_failed", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deadline_at", sa.BigInteger(), nullable=False),
        sa.Column("runtime_deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("planned_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finalizing_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("stop_reason", sa.String(length=12), nullable=True),
        sa.Column("stop_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("errors", sa.JSON(), nullable=True),
        sa.Column("output_file_id", sa.String(length=40), nullable=True),
        sa.Column("error_file_id", sa.String(length=40), nullable=True),
        sa.Column("webhook_secret", sa.LargeBinary(), nullable=True),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("capacity", sa.String(length=12), server_default="any", nullable=False),
        sa.Column("tokens_redone", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("planning_attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=True),
        sa.Column("paused_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("results_deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("events_deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("retry_of", sa.String(length=40), nullable=True),
        sa.Column("tokens_queued", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("plan_page", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("plan_cursor", sa.JSON(), nullable=True),
        sa.Column("output_place", sa.String(length=64), nullable=True),
        sa.Column("output_upload", sa.JSON(), nullable=True),
        sa.Column("rows_reused", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_problem", sa.JSON(), nullable=True),
        sa.Column("shards_ended", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parts_written", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=True),
        sa.Column("traceparent", sa.String(length=55), nullable=True),
        sa.Column("worker_ms_spot", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_ms_on_demand", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("input_fault", sa.JSON(), nullable=True),
        sa.Column("current_problem", sa.JSON(), nullable=True),
        sa.Column("problem_changes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("rows_unlisted", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
    )
    op.create_index("ix_job_active", "job", ["state", "kind", "priority_rank"])
    op.create_index(
        "ix_job_batches",
        "job",
        ["tenant_id", "kind", "face", "created_at", "id"],
        **_where("kind = 'bulk' AND face = 'openai'"),
    )
    op.create_index(
        "ix_job_ended",
        "job",
        ["tenant_id", "kind", "finished_at", "id"],
        **_where("finished_at IS NOT NULL AND deleted_at IS NULL"),
    )
    op.create_index("ix_job_listing", "job", ["tenant_id", "kind", "created_at", "id", "priority", "model"])
    op.create_index("ix_job_newest", "job", ["tenant_id", "created_at", "id"])
    op.create_index("ix_job_of_model", "job", ["tenant_id", "model", "created_at", "id", "kind", "priority"])
    op.create_index(
        "ix_job_of_name", "job", ["tenant_id", "name", "created_at", "id"], **_where("name IS NOT NULL")
    )
    op.create_index(
        "ix_job_of_priority", "job", ["tenant_id", "priority", "created_at", "id", "kind", "model"]
    )
    op.create_index(
        "ix_job_of_state", "job", ["tenant_id", "state", "created_at", "id", "kind", "priority", "model"]
    )
    op.create_index(
        "ix_job_online_unclaimed",
        "job",
        ["model", "priority", "capacity", "created_at", "deadline_at"],
        **_where("kind = 'online' AND state = 'queued'"),
    )
    op.create_index(
        "ix_job_output_place",
        "job",
        ["output_place"],
        unique=True,
        **_where("output_place IS NOT NULL AND state IN ('queued', 'running', 'finalizing')"),
    )
    op.create_index(
        "ix_job_queue",
        "job",
        ["kind", "priority_rank", "created_at", "state", "paused_at"],
        **_where("state IN ('queued', 'running') AND paused_at IS NULL"),
    )
    op.create_index("ix_job_repeat", "job", ["tenant_id", "fingerprint", "created_at", "stored_bytes"])
    op.create_index("ix_job_retries", "job", ["retry_of", "created_at"], **_where("retry_of IS NOT NULL"))
    op.create_index(
        "ix_job_with_events",
        "job",
        ["tenant_id", "kind", "finished_at", "id"],
        **_where("finished_at IS NOT NULL AND events_deleted_at IS NULL"),
    )
    op.create_index(
        "ix_job_with_results",
        "job",
        ["tenant_id", "kind", "finished_at", "id"],
        **_where("finished_at IS NOT NULL AND results_deleted_at IS NULL"),
    )

    op.create_table(
        "leadership",
        sa.Column("duty", sa.String(length=32), nullable=False),
        sa.Column("leader_id", sa.String(length=40), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("stalled", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("duty", name="pk_leadership"),
    )

    op.create_table(
        "model",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=True),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=True),
        sa.Column("dimensions", sa.Integer(), nullable=True),
        sa.Column("output_sizes", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_model"),
    )

    op.create_table(
        "outbox",
        sa.Column("id", _serial(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("shard_id", sa.String(length=40), nullable=True),
        sa.Column("priority_rank", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )

    op.create_table(
        "service_figure",
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("at", name="pk_service_figure"),
    )

    op.create_table(
        "tenant",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("priority_ceiling", sa.String(length=12), server_default="interactive", nullable=False),
        sa.Column("quotas", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenant"),
    )
    op.create_index("ix_tenant_listing", "tenant", ["created_at", "id"])

    op.create_table(
        "tenant_secret",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("webhook_secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_tenant_secret"),
    )

    op.create_table(
        "upload",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("file_expires_after_s", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("file_id", sa.String(length=40), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_upload"),
    )
    op.create_index("ix_upload_due", "upload", ["status", "expires_at"])
    op.create_index("ix_upload_tenant", "upload", ["tenant_id", "status", "expires_at"])

    op.create_table(
        "usage",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "day", "model", name="pk_usage"),
    )

    op.create_table(
        "webhook_endpoint",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", sa.JSON(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("secret_hint", sa.String(length=16), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_secret_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("failing_since", sa.BigInteger(), nullable=True),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.Column("disabled_reason", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoint"),
    )
    op.create_index("ix_webhook_endpoint_listing", "webhook_endpoint", ["tenant_id", "created_at", "id"])

    op.create_table(
        "worker",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.Column("capacity", sa.String(length=12), server_default="on_demand", nullable=False),
        sa.Column("drain_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_cause", sa.String(length=24), nullable=True),
        sa.Column("lost_at", sa.BigInteger(), nullable=True),
        sa.Column("warm_models", sa.JSON(), nullable=True),
        sa.Column("figures", sa.JSON(), nullable=True),
        sa.Column("pools", sa.JSON(), nullable=True),
        sa.Column("notice_kind", sa.String(length=16), nullable=True),
        sa.Column("notice_at", sa.BigInteger(), nullable=True),
        sa.Column("notice_ends_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
    )
    op.create_index("ix_worker_heard_of", "worker", ["heartbeat_at"])
    op.create_index("ix_worker_listing", "worker", ["state", "started_at", "id"])

    op.create_table(
        "delivery",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("event_id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("event_type", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("endpoint_id", sa.String(length=40), nullable=True),
        sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("replayed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_delivery_job_id_job"),
        sa.PrimaryKeyConstraint("id", name="pk_delivery"),
    )
    op.create_index("ix_delivery_due", "delivery", ["state", "next_at", "created_at"])
    op.create_index("ix_delivery_listing", "delivery", ["tenant_id", "created_at", "id"])
    op.create_index("ix_delivery_of_endpoint", "delivery", ["tenant_id", "endpoint_id", "created_at", "id"])
    op.create_index(
        "ix_delivery_of_endpoint_state", "delivery", ["tenant_id", "endpoint_id", "state", "created_at", "id"]
    )
    op.create_index("ix_delivery_of_job", "delivery", ["job_id", "tenant_id", "created_at", "id"])
    op.create_index("ix_delivery_of_state", "delivery", ["tenant_id", "state", "created_at", "id"])

    op.create_table(
        "event",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_event_job_id_job"),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_event"),
    )
    op.create_index(
        "ix_event_milestone",
        "event",
        ["job_id", "seq"],
        **_where(f"type IN ({', '.join(map(repr, _MILESTONES))})"),
    )

    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_idempotency_job_id_job"),
        sa.PrimaryKeyConstraint("tenant_id", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_expires_at", "idempotency", ["expires_at"])
    op.create_index("ix_idempotency_of_job", "idempotency", ["job_id"])

    op.create_table(
        "output_part",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("first_shard", sa.Integer(), nullable=False),
        sa.Column("last_shard", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=True),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("uploads", sa.JSON(), nullable=True),
        sa.Column("files", sa.JSON(), nullable=True),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_output_part_job_id_job"),
        sa.PrimaryKeyConstraint("id", name="pk_output_part"),
        sa.UniqueConstraint("job_id", "first_shard", name="uq_output_part_job_id"),
    )
    op.create_index(
        "ix_output_part_leased",
        "output_part",
        ["lease_expires_at", "tenant_id"],
        **_where("state = 'leased'"),
    )
    op.create_index("ix_output_part_of_job", "output_part", ["job_id", "state", "first_shard"])
    op.create_index(
        "ix_output_part_problem", "output_part", ["job_id", "not_before"], **_where("problem IS NOT NULL")
    )
    op.create_index("ix_output_part_uploads", "output_part", ["job_id"], **_where("uploads IS NOT NULL"))

    op.create_table(
        "page_session",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name="fk_page_session_key_id_api_key"),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_page_session"),
    )
    op.create_index("ix_page_session_of_key", "page_session", ["key_id", "created_at"])
    op.create_index("ix_page_session_used", "page_session", ["used_at"])

    op.create_table(
        "shard",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("shard_no", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("crash_count", sa.Integer(), nullable=False),
        sa.Column("enqueued_at", sa.BigInteger(), nullable=False),
        sa.Column("signalled_at", sa.BigInteger(), nullable=True),
        sa.Column("rows_done", sa.BigInteger(), nullable=False),
        sa.Column("rows_total", sa.BigInteger(), nullable=True),
        sa.Column("rows_estimated", sa.BigInteger(), nullable=True),
        sa.Column("first_row", sa.BigInteger(), nullable=True),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=True),
        sa.Column("carry_over_key", sa.Text(), nullable=True),
        sa.Column("capacity", sa.String(length=12), server_default="any", nullable=False),
        sa.Column("source_etag", sa.Text(), nullable=True),
        sa.Column("tokens_in_flight", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("faults", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("suspects", sa.JSON(), nullable=True),
        sa.Column("is_isolating", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("part_first_shard", sa.Integer(), nullable=True),
        sa.Column("result_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("objects", sa.JSON(), nullable=True),
        sa.Column("interruption", sa.JSON(), nullable=True),
        sa.Column("fault", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_shard_job_id_job"),
        sa.PrimaryKeyConstraint("id", name="pk_shard"),
        sa.UniqueConstraint("job_id", "shard_no", name="uq_shard_job_id"),
    )
    op.create_index("ix_shard_claim", "shard", ["job_id", "state", "shard_no"])
    op.create_index("ix_shard_fault", "shard", ["job_id", "shard_no"], **_where("fault IS NOT NULL"))
    op.create_index("ix_shard_state", "shard", ["state", "kind", "tenant_id"])
    op.create_index(
        "ix_shard_to_cut",
        "shard",
        ["job_id", "shard_no"],
        **_where("kind = 'bulk' AND part_first_shard IS NULL AND state IN ('done', 'stopped', 'failed')"),
    )
    op.create_index("ix_shard_worker", "shard", ["worker_id", "state"])

    op.create_table(
        "upload_part",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("upload_id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["upload.id"], name="fk_upload_part_upload_id_upload"),
        sa.PrimaryKeyConstraint("id", name="pk_upload_part"),
    )
    op.create_index("ix_upload_part_upload_id", "upload_part", ["upload_id"])

    op.create_table(
        "dead_row",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("shard_id", sa.String(length=40), nullable=False),
        sa.Column("row", sa.BigInteger(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("cause", sa.String(length=24), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("died_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("replay_job_id", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_dead_row_job_id_job"),
        sa.ForeignKeyConstraint(["shard_id"], ["shard.id"], name="fk_dead_row_shard_id_shard"),
        sa.PrimaryKeyConstraint("id", name="pk_dead_row"),
        sa.UniqueConstraint("shard_id", "row", name="uq_dead_row_shard_id"),
    )
    op.create_index("ix_dead_row_listing", "dead_row", ["tenant_id", "state", "died_at", "id"])
    op.create_index("ix_dead_row_newest", "dead_row", ["tenant_id", "died_at", "id"])
    op.create_index("ix_dead_row_of_job", "dead_row", ["job_id", "died_at", "id"])

    op.create_table(
        "delivery_attempt",
        sa.Column("delivery_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("response_head", sa.Text(), nullable=True),
        sa.Column("retry_after_s", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["delivery_id"], ["delivery.id"], name="fk_delivery_attempt_delivery_id_delivery"
        ),
        sa.PrimaryKeyConstraint("delivery_id", "attempt_no", name="pk_delivery_attempt"),
    )

    op.create_table(
        "request",
        sa.Column("shard_id", sa.String(length=40), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["shard_id"], ["shard.id"], name="fk_request_shard_id_shard"),
        sa.PrimaryKeyConstraint("shard_id", name="pk_request"),
    )

    op.create_table(
        "result",
        sa.Column("shard_id", sa.String(length=40), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["shard_id"], ["shard.id"], name="fk_result_shard_id_shard"),
        sa.PrimaryKeyConstraint("shard_id", name="pk_result"),
    )

    op.create_table(
        "row_crash",
        sa.Column("shard_id", sa.String(length=40), nullable=False),
        sa.Column("row", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("explained", sa.Integer(), nullable=False),
        sa.Column("last_cause", sa.String(length=24), nullable=False),
        sa.Column("lost_before", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["shard_id"], ["shard.id"], name="fk_row_crash_shard_id_shard"),
        sa.PrimaryKeyConstraint("shard_id", "row", name="pk_row_crash"),
    )

    op.create_table(
        "segment",
        sa.Column("id", _serial(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("shard_id", sa.String(length=40), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("output_bytes", sa.BigInteger(), nullable=True),
        sa.Column("reused", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("earlier", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_segment_job_id_job"),
        sa.ForeignKeyConstraint(["shard_id"], ["shard.id"], name="fk_segment_shard_id_shard"),
        sa.PrimaryKeyConstraint("id", name="pk_segment"),
        sa.UniqueConstraint("shard_id", "term", "seq", name="uq_segment_shard_id"),
    )
    op.create_index("ix_segment_job", "segment", ["job_id", "id"])
    op.create_index("ix_segment_with_failures", "segment", ["job_id", "id"], **_where("failed > 0"))


def downgrade() -> None:
    op.drop_table("segment")
    op.drop_table("row_crash")
    op.drop_table("result")
    op.drop_table("request")
    op.drop_table("delivery_attempt")
    op.drop_table("dead_row")
    op.drop_table("upload_part")
    op.drop_table("shard")
    op.drop_table("page_session")
    op.drop_table("output_part")
    op.drop_table("idempotency")
    op.drop_table("event")
    op.drop_table("delivery")
    op.drop_table("worker")
    op.drop_table("webhook_endpoint")
    op.drop_table("usage")
    op.drop_table("upload")
    op.drop_table("tenant_secret")
    op.drop_table("tenant")
    op.drop_table("service_figure")
    op.drop_table("outbox")
    op.drop_table("model")
    op.drop_table("leadership")
    op.drop_table("job")
    op.drop_table("holding")
    op.drop_table("gone_endpoint")
    op.drop_table("file")
    op.drop_table("deletion")
    op.drop_table("counter")
    op.drop_table("audit")
    op.drop_table("api_key")
