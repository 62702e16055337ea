"""Workers tell figures of themselves; those of the whole service are kept for a while."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0033"
down_revision: str | None = "0032"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ONLINE_UNCLAIMED = "kind = 'online' AND state = 'queued'"


def upgrade() -> None:
    op.add_column("worker", sa.Column("figures", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "service_figure",
        sa.Column("at", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("at", name="pk_service_figure"),
    )
    op.create_index(
        "ix_job_online_unclaimed",
        "job",
        ["model", "priority", "capacity", "created_at", "deadline_at"],
        sqlite_where=sa.text(ONLINE_UNCLAIMED),
        postgresql_where=sa.text(ONLINE_UNCLAIMED),
    )


def downgrade() -> None:
    op.drop_index("ix_job_online_unclaimed", "job")
    op.drop_table("service_figure")
    op.drop_column("worker", "figures")
