"""Workers tell of the notices that their machines get, and when these go."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0040"
down_revision: str | None = "0039"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("notice_kind", sa.String(16), nullable=True))
    op.add_column("worker", sa.Column("notice_at", sa.BigInteger(), nullable=True))
    op.add_column("worker", sa.Column("notice_ends_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("worker", "notice_ends_at")
    op.drop_column("worker", "notice_at")
    op.drop_column("worker", "notice_kind")
