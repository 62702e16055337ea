"""Count what tenants store, in rows that change with it."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "holding",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stored_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "slot", name=op.f("pk_holding")),
    )
    op.execute(
        "INSERT INTO holding (tenant_id, slot, stored_files, stored_bytes) "
        "SELECT tenant_id, 0, sum(files), sum(size_bytes) FROM ("
        "SELECT tenant_id, 1 AS files, size_bytes FROM file "
        "UNION ALL SELECT tenant_id, 0, size_bytes FROM upload_part) AS stored GROUP BY tenant_id"
    )


def downgrade() -> None:
    op.drop_table("holding")
