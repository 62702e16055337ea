"""List a tenant's batches, and its jobs of one name, model or priority, in the order of an index."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BATCHES = sa.text("kind = 'bulk' AND face = 'openai'")
_NAMED = sa.text("name IS NOT NULL")

# PostgreSQL keeps NUL and half surrogates in JSON, and fails when it is to take them apart.
_POSTGRESQL = r"""
UPDATE job SET name = spec ->> 'name'
WHERE CASE WHEN CAST(spec AS TEXT) ~ '\\u(0000|[dD][89a-fA-F])' THEN NULL ELSE spec ->> 'name' END IS NOT NULL
"""
_SQLITE = """
UPDATE job SET name = json_extract(spec, '$.name') WHERE json_extract(spec, '$.name') IS NOT NULL
"""


def upgrade() -> None:
    op.add_column("job", sa.Column("name", sa.String(length=100), nullable=True))
    op.execute(sa.text(_SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL))
    op.create_index(
        "ix_job_of_name",
        "job",
        ["tenant_id", "name", "created_at", "id"],
        sqlite_where=_NAMED,
        postgresql_where=_NAMED,
    )
    op.create_index(
        "ix_job_batches",
        "job",
        ["tenant_id", "kind", "face", "created_at", "id"],
        sqlite_where=_BATCHES,
        postgresql_where=_BATCHES,
    )
    op.create_index("ix_job_of_model", "job", ["tenant_id", "model", "created_at", "id"])
    op.create_index("ix_job_of_priority", "job", ["tenant_id", "priority", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_job_of_priority", "job")
    op.drop_index("ix_job_of_model", "job")
    op.drop_index("ix_job_batches", "job")
    op.drop_index("ix_job_of_name", "job")
    op.drop_column("job", "name")
