"""Register webhook endpoints; a delivery may name one, be replayed, and be listed by endpoint and state."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "webhook_endpoint",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", sa.JSON(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("secret_hint", sa.String(length=16), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary()),
        sa.Column("previous_secret_until", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("failing_since", sa.BigInteger()),
        sa.Column("disabled_at", sa.BigInteger()),
        sa.Column("disabled_reason", sa.String(length=16)),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoint"),
    )
    op.create_index("ix_webhook_endpoint_listing", "webhook_endpoint", ["tenant_id", "created_at", "id"])
    op.add_column("delivery", sa.Column("endpoint_id", sa.String(length=40)))
    op.add_column(
        "delivery", sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("delivery", sa.Column("replayed_at", sa.BigInteger()))
    op.create_index("ix_delivery_of_endpoint", "delivery", ["tenant_id", "endpoint_id", "created_at", "id"])
    op.create_index(
        "ix_delivery_of_endpoint_state", "delivery", ["tenant_id", "endpoint_id", "state", "created_at", "id"]
    )
    op.create_index("ix_delivery_of_state", "delivery", ["tenant_id", "state", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_delivery_of_state", "delivery")
    op.drop_index("ix_delivery_of_endpoint_state", "delivery")
    op.drop_index("ix_delivery_of_endpoint", "delivery")
    op.drop_column("delivery", "replayed_at")
    op.drop_column("delivery", "attempts_before")
    op.drop_column("delivery", "endpoint_id")
    op.drop_table("webhook_endpoint")
