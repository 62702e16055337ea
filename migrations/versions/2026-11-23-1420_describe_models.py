"""What a model computes in, and how many dimensions its vectors have. Workers register it anew."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("model", sa.Column("dtype", sa.String(length=16), nullable=True))
    op.add_column("model", sa.Column("dimensions", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("model", "dimensions")
    op.drop_column("model", "dtype")
