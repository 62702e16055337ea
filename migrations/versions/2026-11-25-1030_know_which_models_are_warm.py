"""A worker may serve models that it has not loaded."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0031"
down_revision: str | None = "0030"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("warm_models", sa.JSON(), nullable=True))
    with op.batch_alter_table("model") as batch:
        batch.alter_column("context_length", existing_type=sa.Integer(), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM model WHERE context_length IS NULL")
    with op.batch_alter_table("model") as batch:
        batch.alter_column("context_length", existing_type=sa.Integer(), nullable=False)
    op.drop_column("worker", "warm_models")
