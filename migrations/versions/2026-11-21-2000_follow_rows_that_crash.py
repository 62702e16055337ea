"""Follow rows that crash their workers, tokens done twice, and which machines a job may run on.

Processes of the release before go on inserting here: every new column may be null or has a default.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for table, columns in _new_columns().items():
        for column in columns:
            op.add_column(table, column)

    op.create_table(
        "row_crash",
        sa.Column("shard_id", sa.String(length=40), nullable=False),
        sa.Column("row", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("explained", sa.Integer(), nullable=False),
        sa.Column("last_cause", sa.String(length=24), nullable=False),
        sa.ForeignKeyConstraint(["shard_id"], ["shard.id"], name="fk_row_crash_shard_id_shard"),
        sa.PrimaryKeyConstraint("shard_id", "row", name="pk_row_crash"),
    )
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
    op.create_index("ix_dead_row_listing", "dead_row", ["tenant_id", "state", "died_at", "id"], unique=False)

    op.create_table(
        "gone_endpoint",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("url_sha256", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("gone_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "url_sha256", name="pk_gone_endpoint"),
    )
    op.create_table(
        "counter",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counter"),
    )


def downgrade() -> None:
    op.drop_table("counter")
    op.drop_table("gone_endpoint")
    op.drop_index("ix_dead_row_listing", table_name="dead_row")

    op.drop_table("dead_row")
    op.drop_table("row_crash")
    for table, columns in _new_columns().items():
        for column in columns:
            op.drop_column(table, column.name)


def _new_columns() -> dict[str, list[sa.Column]]:
    zero = sa.text("0")
    return {
        "job": [
            sa.Column("capacity", sa.String(length=12), server_default="any", nullable=False),
            sa.Column("tokens_redone", sa.BigInteger(), server_default=zero, nullable=False),
        ],
        "shard": [
            sa.Column("capacity", sa.String(length=12), server_default="any", nullable=False),
            sa.Column("source_etag", sa.Text(), nullable=True),
            sa.Column("tokens_in_flight", sa.BigInteger(), server_default=zero, nullable=False),
            sa.Column("faults", sa.Integer(), server_default=zero, nullable=False),
            sa.Column("suspects", sa.JSON(), nullable=True),
            sa.Column("is_isolating", sa.Boolean(), server_default=sa.false(), nullable=False),
        ],
        "worker": [
            sa.Column("capacity", sa.String(length=12), server_default="on_demand", nullable=False),
            sa.Column("drain_requested_at", sa.BigInteger(), nullable=True),
            sa.Column("ended_at", sa.BigInteger(), nullable=True),
            sa.Column("ended_cause", sa.String(length=24), nullable=True),
        ],
    }
