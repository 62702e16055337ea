"""Count the attempts to plan a job whose end no scheduler has told.

Processes of the release before go on inserting here: the column has a default.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    attempts = sa.Column("planning_attempts", sa.Integer(), server_default=sa.text("0"), nullable=False)
    op.add_column("job", attempts)


def downgrade() -> None:
    op.drop_column("job", "planning_attempts")
