"""Count attempts of a shard from its last progress on.

Processes of the release before go on inserting here: the new column has a default.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    column = sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False)
    op.add_column("shard", column)


def downgrade() -> None:
    op.drop_column("shard", "attempts_before")
