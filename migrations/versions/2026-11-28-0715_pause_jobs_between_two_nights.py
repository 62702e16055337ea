"""Pause jobs between two nights, and say from when they are urgent."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0050"
down_revision: str | None = "0049"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

IS_SET = sa.text("window_turns_at IS NOT NULL")


def upgrade() -> None:
    op.add_column("job", sa.Column("window_turns_at", sa.BigInteger()))
    op.add_column("job", sa.Column("urgent_at", sa.BigInteger()))
    op.add_column("job", sa.Column("outlook", sa.String(12)))
    op.create_index("ix_job_window", "job", ["window_turns_at"], sqlite_where=IS_SET, postgresql_where=IS_SET)


def downgrade() -> None:
    op.drop_index("ix_job_window", "job")
    for name in ("outlook", "urgent_at", "window_turns_at"):
        op.drop_column("job", name)
