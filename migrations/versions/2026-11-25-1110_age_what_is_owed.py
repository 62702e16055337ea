"""How old what is owed is, is read from an index."""

from collections.abc import Sequence

from alembic import op

revision: str = "0035"
down_revision: str | None = "0034"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.drop_index("ix_delivery_due", "delivery")
    op.create_index("ix_delivery_due", "delivery", ["state", "next_at", "created_at"])


def downgrade() -> None:
    op.drop_index("ix_delivery_due", "delivery")
    op.create_index("ix_delivery_due", "delivery", ["state", "next_at"])
