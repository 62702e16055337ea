"""Count what tenants have queued, in rows that change with it."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

COUNTED = ("online_requests", "bulk_jobs", "bulk_rows", "queued_tokens")


def upgrade() -> None:
    op.add_column(
        "job", sa.Column("tokens_queued", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    for name in COUNTED:
        op.add_column(
            "holding", sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        )
    op.execute(
        "INSERT INTO holding (tenant_id, slot, online_requests, bulk_jobs, bulk_rows) "
        "SELECT tenant_id, 1, "
        "sum(CASE WHEN kind = 'online' THEN 1 ELSE 0 END), "
        "sum(CASE WHEN kind = 'bulk' THEN 1 ELSE 0 END), "
        "sum(CASE WHEN kind = 'bulk' THEN "
        "coalesce(rows_total, rows_estimated, 0) - rows_succeeded - rows_failed ELSE 0 END) "
        "FROM job WHERE state IN ('queued', 'running', 'finalizing') GROUP BY tenant_id "
        "ON CONFLICT (tenant_id, slot) DO UPDATE SET online_requests = excluded.online_requests, "
        "bulk_jobs = excluded.bulk_jobs, bulk_rows = excluded.bulk_rows"
    )


def downgrade() -> None:
    for name in reversed(COUNTED):
        op.drop_column("holding", name)
    op.drop_column("job", "tokens_queued")
