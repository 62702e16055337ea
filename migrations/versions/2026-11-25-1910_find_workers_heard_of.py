"""Workers are found by their last heartbeat, and a job's deliveries in their order."""

from collections.abc import Sequence

from alembic import op

revision: str = "0042"
down_revision: str | None = "0041"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("ix_worker_heard_of", "worker", ["heartbeat_at"])
    op.drop_index("ix_delivery_of_job", "delivery")
    op.create_index("ix_delivery_of_job", "delivery", ["job_id", "tenant_id", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_delivery_of_job", "delivery")
    op.create_index("ix_delivery_of_job", "delivery", ["job_id"])
    op.drop_index("ix_worker_heard_of", "worker")
