"""Add schedules, their versions and their runs."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0049"
down_revision: str | None = "0048"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    op.create_table(
        "schedule",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("after", sa.String(100)),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("paused_at", sa.BigInteger()),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("problem", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_schedule_tenant_id")),
    )
    op.create_index("ix_schedule_listing", "schedule", ["tenant_id", "created_at", "id"])
    _partial("ix_schedule_due", "schedule", ["next_at", "id"], "next_at IS NOT NULL")
    _partial("ix_schedule_follower", "schedule", ["tenant_id", "after"], "after IS NOT NULL")
    op.create_table(
        "schedule_version",
        sa.Column("schedule_id", sa.String(40), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("job", sa.JSON(), nullable=False),
        sa.Column("webhook", sa.JSON()),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("priority", sa.String(12), nullable=False),
        sa.Column("webhook_secret", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedule.id"], name=op.f("fk_schedule_version_schedule_id_schedule")
        ),
        sa.PrimaryKeyConstraint("schedule_id", "version", name=op.f("pk_schedule_version")),
    )
    op.create_table(
        "schedule_run",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("schedule_id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("follows", sa.String(40)),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("local_date", sa.String(10), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("check_at", sa.BigInteger()),
        sa.Column("job_id", sa.String(40)),
        sa.Column("output", sa.Text()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedule.id"], name=op.f("fk_schedule_run_schedule_id_schedule")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_run")),
        sa.UniqueConstraint("schedule_id", "due_at", name=op.f("uq_schedule_run_schedule_id")),
    )
    under_way = "state IN ('waiting', 'submitted')"
    _partial("ix_schedule_run_check", "schedule_run", ["check_at", "id"], "check_at IS NOT NULL")
    _partial("ix_schedule_run_under_way", "schedule_run", ["schedule_id", "due_at"], under_way)
    _partial("ix_schedule_run_followed", "schedule_run", ["follows", "due_at"], under_way)
    _partial("ix_schedule_run_of_job", "schedule_run", ["job_id"], under_way)


def downgrade() -> None:
    op.drop_table("schedule_run")
    op.drop_table("schedule_version")
    op.drop_table("schedule")
