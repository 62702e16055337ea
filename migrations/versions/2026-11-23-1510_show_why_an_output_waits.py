"""Why a job's output is not written at present, of its manifest and, by an index, of its parts. Whether
there is something to cut or to list, without counting shards and parts.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0028"
down_revision: str | None = "0027"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_WITH_PROBLEM = sa.text("problem IS NOT NULL")


def upgrade() -> None:
    op.add_column("job", sa.Column("output_problem", sa.JSON(none_as_null=True), nullable=True))
    for name in ("shards_ended", "parts_written"):
        op.add_column("job", sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.create_index(
        "ix_output_part_problem",
        "output_part",
        ["job_id", "not_before"],
        sqlite_where=_WITH_PROBLEM,
        postgresql_where=_WITH_PROBLEM,
    )


def downgrade() -> None:
    op.drop_index("ix_output_part_problem", "output_part")
    op.drop_column("job", "parts_written")
    op.drop_column("job", "shards_ended")
    op.drop_column("job", "output_problem")
