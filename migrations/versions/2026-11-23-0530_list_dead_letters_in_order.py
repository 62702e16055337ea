"""Lists of dead letters in the order of an index: a tenant's, and those of a job."""

from collections.abc import Sequence

from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("ix_dead_row_newest", "dead_row", ["tenant_id", "died_at", "id"])
    op.drop_index("ix_dead_row_of_job", "dead_row")
    op.create_index("ix_dead_row_of_job", "dead_row", ["job_id", "died_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_dead_row_of_job", "dead_row")
    op.create_index("ix_dead_row_of_job", "dead_row", ["job_id"])
    op.drop_index("ix_dead_row_newest", "dead_row")
