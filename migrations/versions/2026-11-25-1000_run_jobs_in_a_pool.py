"""A job may name the pool of workers that runs it."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0030"
down_revision: str | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("job", sa.Column("pool", sa.String(length=63), nullable=True))


def downgrade() -> None:
    op.drop_column("job", "pool")
