"""Who is signed in to the page."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0034"
down_revision: str | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "page_session",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name="fk_page_session_key_id_api_key"),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_page_session"),
    )
    op.create_index("ix_page_session_of_key", "page_session", ["key_id", "created_at"])
    op.create_index("ix_page_session_used", "page_session", ["used_at"])


def downgrade() -> None:
    op.drop_table("page_session")
