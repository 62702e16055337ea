"""Workers say which pools they belong to; workers and keys are listed a page at a time."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0039"
down_revision: str | None = "0038"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("pools", sa.JSON(), nullable=True))
    op.create_index("ix_worker_listing", "worker", ["state", "started_at", "id"])
    op.create_index("ix_api_key_listing", "api_key", ["tenant_id", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_api_key_listing", "api_key")
    op.drop_index("ix_worker_listing", "worker")
    op.drop_column("worker", "pools")
