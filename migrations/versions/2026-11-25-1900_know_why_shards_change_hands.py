"""A shard says how its last lease ended, for the worker that takes it over."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0041"
down_revision: str | None = "0040"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("shard", sa.Column("interruption", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("shard", "interruption")
