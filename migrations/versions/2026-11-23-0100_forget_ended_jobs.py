"""Forget ended jobs: what of them was deleted, and what is still to be."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_ENDED = {
    "ix_job_ended": "deleted_at",
    "ix_job_with_results": "results_deleted_at",
    "ix_job_with_events": "events_deleted_at",
}
_OF_JOB = {
    "ix_delivery_of_job": "delivery",
    "ix_idempotency_of_job": "idempotency",
    "ix_dead_row_of_job": "dead_row",
}


def upgrade() -> None:
    for column in _ENDED.values():
        op.add_column("job", sa.Column(column, sa.BigInteger(), nullable=True))
    for name, column in _ENDED.items():
        kept = sa.text(f"finished_at IS NOT NULL AND {column} IS NULL")
        columns = ["tenant_id", "kind", "finished_at", "id"]
        op.create_index(name, "job", columns, sqlite_where=kept, postgresql_where=kept)
    for name, table in _OF_JOB.items():  # a job is deleted only once no row of these names it
        op.create_index(name, table, ["job_id"])
    op.create_index("ix_file_expiry", "file", ["expires_at", "id"])
    op.create_table(
        "deletion",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("part", sa.String(length=8), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletion")),
    )
    op.create_index("ix_deletion_of_tenant", "deletion", ["tenant_id", "id"])


def downgrade() -> None:
    op.drop_table("deletion")
    op.drop_index("ix_file_expiry", "file")
    for name, table in _OF_JOB.items():
        op.drop_index(name, table)
    for name, column in _ENDED.items():
        op.drop_index(name, "job")
        op.drop_column("job", column)
