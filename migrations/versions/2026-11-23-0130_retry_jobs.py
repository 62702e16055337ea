"""Retry jobs: a job may name the one whose rows it runs again. None does yet."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_RETRIES = sa.text("retry_of IS NOT NULL")


def upgrade() -> None:
    op.add_column("job", sa.Column("retry_of", sa.String(length=40), nullable=True))
    op.create_index(
        "ix_job_retries",
        "job",
        ["retry_of", "created_at"],
        sqlite_where=_RETRIES,
        postgresql_where=_RETRIES,
    )


def downgrade() -> None:
    op.drop_index("ix_job_retries", "job")
    op.drop_column("job", "retry_of")
