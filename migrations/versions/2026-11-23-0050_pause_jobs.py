"""Pause jobs. None is paused yet."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("job", sa.Column("paused_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("job", "paused_at")
