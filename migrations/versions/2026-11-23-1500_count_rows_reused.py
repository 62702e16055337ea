"""How many rows of a job, and of a segment, have the result of another row."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0027"
down_revision: str | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "job", sa.Column("rows_reused", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("segment", sa.Column("reused", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("segment", sa.Column("earlier", sa.Integer(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    op.drop_column("segment", "earlier")
    op.drop_column("segment", "reused")
    op.drop_column("job", "rows_reused")
