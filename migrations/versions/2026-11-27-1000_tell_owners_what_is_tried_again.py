"""A fault that is tried again stands where it was met, and what it means for the job stands on the job."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0044"
down_revision: str | None = "0043"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_MILESTONES_BEFORE = (
    "'job.planned', 'job.updated', 'job.paused', 'job.resumed', 'job.stopping', 'job.finalizing', "
    "'job.shard_lost', 'job.shard_returned', 'job.shard_resumed'"
)
_WITH_FAULT = sa.text("fault IS NOT NULL")


def upgrade() -> None:
    for name in ("input_fault", "current_problem"):
        op.add_column("job", sa.Column(name, sa.JSON(none_as_null=True), nullable=True))
    op.add_column(
        "job", sa.Column("problem_changes", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("shard", sa.Column("fault", sa.JSON(none_as_null=True), nullable=True))
    op.create_index(
        "ix_shard_fault",
        "shard",
        ["job_id", "shard_no"],
        sqlite_where=_WITH_FAULT,
        postgresql_where=_WITH_FAULT,
    )
    _index_milestones(f"type IN ({_MILESTONES_BEFORE}, 'job.problem')")


def downgrade() -> None:
    _index_milestones(f"type IN ({_MILESTONES_BEFORE})")
    op.drop_index("ix_shard_fault", "shard")
    op.drop_column("shard", "fault")
    for name in ("problem_changes", "current_problem", "input_fault"):
        op.drop_column("job", name)


def _index_milestones(condition: str) -> None:
    op.drop_index("ix_event_milestone", "event")
    is_milestone = sa.text(condition)
    op.create_index(
        "ix_event_milestone",
        "event",
        ["job_id", "seq"],
        sqlite_where=is_milestone,
        postgresql_where=is_milestone,
    )
