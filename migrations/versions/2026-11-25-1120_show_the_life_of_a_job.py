"""The page finds what has interrupted a job among its events, and where its failed rows are."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0036"
down_revision: str | None = "0035"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

IS_MILESTONE = (
    "type IN ('job.planned', 'job.updated', 'job.paused', 'job.resumed', 'job.stopping', 'job.finalizing', "
    "'job.shard_lost', 'job.shard_returned', 'job.shard_resumed')"
)


def upgrade() -> None:
    condition = sa.text(IS_MILESTONE)
    op.create_index(
        "ix_event_milestone",
        "event",
        ["job_id", "seq"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
    has_failures = sa.text("failed > 0")
    op.create_index(
        "ix_segment_with_failures",
        "segment",
        ["job_id", "id"],
        sqlite_where=has_failures,
        postgresql_where=has_failures,
    )


def downgrade() -> None:
    op.drop_index("ix_segment_with_failures", "segment")
    op.drop_index("ix_event_milestone", "event")
