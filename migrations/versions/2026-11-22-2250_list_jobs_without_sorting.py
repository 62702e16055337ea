"""List a tenant's jobs, all or of one state, in the order of an index."""

from collections.abc import Sequence

from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("ix_job_newest", "job", ["tenant_id", "created_at", "id"])
    op.create_index("ix_job_of_state", "job", ["tenant_id", "state", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_job_of_state", "job")
    op.drop_index("ix_job_newest", "job")
