"""Let the leading scheduler say which of its duties stands still.

Processes of the release before go on inserting here: the new column may be null.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("leadership", sa.Column("stalled", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("leadership", "stalled")
