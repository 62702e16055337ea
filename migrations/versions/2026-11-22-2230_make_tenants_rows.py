"""Make tenants rows: one for each that has a key, a file or a job; give keys scopes and successors.

Keys that exist get the scopes `read` and `submit`: none was an administrator's. Processes of the release
before go on inserting keys, without scopes, and of tenants that have no row.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "api_key",
        sa.Column("scopes", sa.String(length=64), server_default="read,submit", nullable=False),
    )
    op.add_column("api_key", sa.Column("replaced_by", sa.String(length=16), nullable=True))
    op.create_table(
        "tenant",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenant"),
    )
    op.create_index("ix_tenant_listing", "tenant", ["created_at", "id"], unique=False)
    op.execute(
        "INSERT INTO tenant (id, description, created_at) "
        "SELECT tenant_id, '', MIN(since) FROM ("
        " SELECT tenant_id, MIN(created_at) AS since FROM api_key GROUP BY tenant_id"
        " UNION ALL SELECT tenant_id, MIN(created_at) FROM file GROUP BY tenant_id"
        " UNION ALL SELECT tenant_id, MIN(created_at) FROM job GROUP BY tenant_id"
        ") AS found GROUP BY tenant_id"
    )


def downgrade() -> None:
    op.drop_table("tenant")
    op.drop_column("api_key", "replaced_by")
    op.drop_column("api_key", "scopes")
