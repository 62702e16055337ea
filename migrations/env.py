"""Alembic's entry: which database, and what it should look like."""

from alembic import context
from sqlalchemy import Connection

from nightshift.process.settings import DataSettings
from nightshift.store import open_database
from nightshift.store.tables import metadata


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    database = open_database(DataSettings())
    with database.write() as connection:
        run(connection)
    database.close()
