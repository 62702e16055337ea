"""Parts of the output of native jobs, written while the job runs. None is cut yet."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TO_CUT = sa.text("kind = 'bulk' AND part_first_shard IS NULL AND state IN ('done', 'stopped', 'failed')")
_WRITES = sa.text("output_place IS NOT NULL AND state IN ('queued', 'running', 'finalizing')")
_LEASED = sa.text("state = 'leased'")
_WITH_UPLOADS = sa.text("uploads IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "output_part",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("first_shard", sa.Integer(), nullable=False),
        sa.Column("last_shard", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=True),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("uploads", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("files", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("problem", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_output_part_job_id_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_output_part")),
        sa.UniqueConstraint("job_id", "first_shard", name=op.f("uq_output_part_job_id")),
    )
    op.create_index("ix_output_part_of_job", "output_part", ["job_id", "state", "first_shard"])
    op.create_index(
        "ix_output_part_leased",
        "output_part",
        ["lease_expires_at", "tenant_id"],
        sqlite_where=_LEASED,
        postgresql_where=_LEASED,
    )
    op.create_index(
        "ix_output_part_uploads",
        "output_part",
        ["job_id"],
        sqlite_where=_WITH_UPLOADS,
        postgresql_where=_WITH_UPLOADS,
    )
    op.add_column("job", sa.Column("output_place", sa.String(length=64), nullable=True))
    op.create_index(
        "ix_job_output_place",
        "job",
        ["output_place"],
        unique=True,
        sqlite_where=_WRITES,
        postgresql_where=_WRITES,
    )
    op.add_column("job", sa.Column("output_upload", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("shard", sa.Column("part_first_shard", sa.Integer(), nullable=True))
    op.add_column(
        "shard",
        sa.Column("result_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.create_index(
        "ix_shard_to_cut",
        "shard",
        ["job_id", "shard_no"],
        sqlite_where=_TO_CUT,
        postgresql_where=_TO_CUT,
    )
    op.execute(  # of jobs whose output is still to be written
        "UPDATE shard SET result_bytes = "
        "(SELECT coalesce(sum(size_bytes), 0) FROM segment WHERE segment.shard_id = shard.id) "
        "WHERE kind = 'bulk' AND job_id IN "
        "(SELECT id FROM job WHERE kind = 'bulk' AND state IN ('queued', 'running', 'finalizing'))"
    )


def downgrade() -> None:
    op.drop_index("ix_shard_to_cut", "shard")
    op.drop_column("shard", "result_bytes")
    op.drop_column("shard", "part_first_shard")
    op.drop_table("output_part")
    op.drop_column("job", "output_upload")
    op.drop_index("ix_job_output_place", "job")
    op.drop_column("job", "output_place")
