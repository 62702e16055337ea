"""Limit what a tenant uses: its own quotas, by name. None has any yet."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("tenant", sa.Column("quotas", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("tenant", "quotas")
