"""Cut inputs into shards page by page, from a cursor. A job that is not planned yet begins at the first."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("job", sa.Column("plan_page", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("job", sa.Column("plan_cursor", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("job", "plan_cursor")
    op.drop_column("job", "plan_page")
