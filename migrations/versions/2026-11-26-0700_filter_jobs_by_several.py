"""Jobs of a kind, state, class and model are found in an index: it has what the others of these compare."""

from collections.abc import Sequence
from typing import Final

from alembic import op

revision: str = "0043"
down_revision: str | None = "0042"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# By index: the column by which it finds, and those that it has besides.
INDEXES: Final = {
    "ix_job_listing": ("kind", ("priority", "model")),
    "ix_job_of_model": ("model", ("kind", "priority")),
    "ix_job_of_priority": ("priority", ("kind", "model")),
    "ix_job_of_state": ("state", ("kind", "priority", "model")),
}


def upgrade() -> None:
    for name, (column, others) in INDEXES.items():
        op.drop_index(name, "job")
        op.create_index(name, "job", ["tenant_id", column, "created_at", "id", *others])


def downgrade() -> None:
    for name, (column, _) in INDEXES.items():
        op.drop_index(name, "job")
        op.create_index(name, "job", ["tenant_id", column, "created_at", "id"])
