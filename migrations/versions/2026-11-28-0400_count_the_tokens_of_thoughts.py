"""Count the tokens of thoughts: of jobs, segments, results and daily usage.

Processes of the release before write rows without them, which count none.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0047"
down_revision: str | None = "0046"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TABLES = ("job", "segment", "result", "usage")


def upgrade() -> None:
    for table in _TABLES:
        column = sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column(table, column)


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "reasoning_tokens")
