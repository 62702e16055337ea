"""Weigh the workers lost with a row against those lost elsewhere in the same time.

Processes of the release before go on inserting here: the new columns may be null.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("row_crash", sa.Column("lost_before", sa.BigInteger(), nullable=True))
    op.add_column("worker", sa.Column("lost_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("worker", "lost_at")
    op.drop_column("row_crash", "lost_before")
