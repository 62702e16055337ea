"""Checks of the database: its answers, its schema, its clock, and the leading scheduler."""

from datetime import timedelta

from nightshift.cli.doctor.clocks import compare
from nightshift.cli.doctor.examination import Finding, error, ok, skipped, warning
from nightshift.cli.doctor.site import Site
from nightshift.errors import DatabaseUnavailable, DatabaseUnusable, SchemaBehind
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.store.databases.migrate import check_schema, revisions


def look_at_database(site: Site) -> Finding:
    """The database answers. Raises ConfigurationError."""
    with site.database() as store:
        try:
            return ok(f"{store.database.server_version()} answers")
        except (DatabaseUnavailable, DatabaseUnusable) as refusal:
            is_file = store.database.is_sqlite
            where = "" if is_file else "; is it running? NIGHTSHIFT_DATABASE_URL says where"
            return error("does not work", f"{refusal.message}{where}")


def look_at_schema(site: Site) -> Finding:
    """All migrations of this version are applied, and the schema is what they make."""
    with site.database() as store:
        try:
            schema = revisions(store.database)
            detail = f"the database is at {schema.applied or 'none'}, and this version's is {schema.newest}"
            check_schema(store.database)
        except SchemaBehind:
            return error(detail, "run `python -m nightshift.store.databases.migrate`")
        except DatabaseUnusable as refusal:
            return error("this version cannot work with it", refusal.message)
        if schema.applied == schema.newest:
            return ok(f"current ({schema.newest})")
        return warning(detail, "a later release is being rolled out: let its processes replace the rest")


def look_at_database_clock(site: Site) -> Finding:
    """All times of jobs, leases and workers are the database's."""
    with site.database() as store:
        store.now()  # the next one has a connection
        return compare("the database's clock", store.now, timedelta(milliseconds=1))


def look_at_scheduler(site: Site) -> Finding:
    """A scheduler leads and its duties end."""
    with site.snapshot() as tx:
        leader, now, backlog = tx.leadership.leader(SCHEDULER_DUTY), tx.now(), tx.jobs.backlog()
    unfinished = sum(group.jobs for group in backlog)
    if leader is None or leader.expires_at <= now:
        if not unfinished:
            return skipped("no scheduler runs, and no job waits for one")
        return error(
            f"no scheduler leads, and {unfinished} jobs have not ended",
            "start `python -m scheduler`, or `nightshift up`: jobs are neither planned nor ended without one",
        )
    if leader.stalled is not None:
        return error(
            f"the scheduler's duty '{leader.stalled}' stands still",
            "look into the scheduler's log (of `nightshift up`: logs/scheduler.log) and restart it",
        )
    return ok(f"{leader.leader_id} leads (term {leader.term})")
