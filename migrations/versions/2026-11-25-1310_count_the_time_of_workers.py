"""A job knows how much time of workers it has taken."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0038"
down_revision: str | None = "0037"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for name in ("worker_ms_spot", "worker_ms_on_demand"):
        op.add_column("job", sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    op.drop_column("job", "worker_ms_on_demand")
    op.drop_column("job", "worker_ms_spot")
