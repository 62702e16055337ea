"""A shard may have many objects, such as images, each of which is a row. Those that are planned have one."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0032"
down_revision: str | None = "0031"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("shard", sa.Column("objects", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("shard", "objects")
