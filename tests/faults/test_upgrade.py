"""Two releases at once: the schema of a later one under this one's processes, which come and go meanwhile."""

from sqlalchemy import Connection

from nightshift.store.databases.migrate import change_schema
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import submit_some
from tests.faults.conftest import ServiceOf
from tests.faults.kit.service import Parts

A_LATER_RELEASE = (
    "ALTER TABLE job ADD COLUMN colour TEXT",
    "ALTER TABLE shard ADD COLUMN colour TEXT NOT NULL DEFAULT 'none'",
    "CREATE TABLE colour (name TEXT)",
    "UPDATE alembic_version SET version_num = '9999'",
)
WISH_OF_TOMORROW = "UPDATE job SET spec = jsonb_set(spec::jsonb, '{colour}', '\"red\"')"


def upgrade(connection: Connection) -> None:
    for change in A_LATER_RELEASE:
        connection.exec_driver_sql(change)


def test_the_schema_moves_on_under_a_service_that_goes_on(service_of: ServiceOf) -> None:
    service = service_of(Parts(database="postgresql", workers=2))
    jobs = submit_some(service, seed=1)

    change_schema(service.database, upgrade)
    jobs += submit_some(service, seed=2)
    with service.database.write() as connection:
        connection.exec_driver_sql(WISH_OF_TOMORROW)
    for role in ("worker-1", "api", "scheduler-1"):  # as a rolling restart would, in any order
        service.restart(role)
        jobs += submit_some(service, seed=len(jobs))
    service.wait_until_ready()

    oracle.judge(service, jobs, Limits(attempts_max=1))
