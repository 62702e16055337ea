"""Limit a tenant's priority: the best class of its jobs. None is limited yet."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "tenant",
        sa.Column("priority_ceiling", sa.String(length=12), server_default="interactive", nullable=False),
    )


def downgrade() -> None:
    op.drop_column("tenant", "priority_ceiling")
