"""An index of the jobs of which rows may start, in the queue's order."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_IN_QUEUE = sa.text("state IN ('queued', 'running') AND paused_at IS NULL")


def upgrade() -> None:
    op.create_index(
        "ix_job_queue",
        "job",
        ["kind", "priority_rank", "created_at", "state", "paused_at"],
        sqlite_where=_IN_QUEUE,
        postgresql_where=_IN_QUEUE,
    )


def downgrade() -> None:
    op.drop_index("ix_job_queue", "job")
