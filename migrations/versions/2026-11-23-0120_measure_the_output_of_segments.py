"""Say how many bytes of an output file each segment has; not known of those that are listed already."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("segment", sa.Column("output_bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("segment", "output_bytes")
