"""Count the bodies and answers of online requests, and the templates of bulk jobs, as stored. Know how large
the parts of a model's answers may be.

The scheduler's recounting adds to the tenants' counters what the jobs say. Templates of jobs that are older
than this count as nothing.
"""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from alembic import op

revision: str = "0045"
down_revision: str | None = "0044"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

REPEAT: Final = ("tenant_id", "fingerprint", "created_at")
BYTES_OF: Final = {"postgresql": "octet_length({0}.body::text)", "sqlite": "length(CAST({0}.body AS BLOB))"}


def upgrade() -> None:
    op.add_column(
        "job", sa.Column("stored_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    size = BYTES_OF[op.get_bind().dialect.name]
    of_both = " + ".join(
        f"coalesce((SELECT sum({size.format(table)}) FROM {table} JOIN shard ON shard.id = {table}.shard_id "
        "WHERE shard.job_id = job.id), 0)"
        for table in ("request", "result")
    )
    op.execute(f"UPDATE job SET stored_bytes = {of_both} WHERE kind = 'online'")
    op.drop_index("ix_job_repeat", "job")
    op.create_index("ix_job_repeat", "job", [*REPEAT, "stored_bytes"])
    op.add_column("model", sa.Column("output_sizes", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("model", "output_sizes")
    op.drop_index("ix_job_repeat", "job")
    op.create_index("ix_job_repeat", "job", [*REPEAT])
    op.drop_column("job", "stored_bytes")
