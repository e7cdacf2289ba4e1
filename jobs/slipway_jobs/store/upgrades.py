"""Changes the tables of an older release to those of this one. New tables are created by `database`."""

from sqlalchemy import Connection, delete, select, update

from .tables import SCHEMA_VERSION, about

# By the version that they start from, for SQLite and PostgreSQL alike. Processes of the older release keep working:
# new columns have defaults.
_STATEMENTS = {
    1: (
        "ALTER TABLE slipway_job_lines ADD COLUMN losses INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX slipway_job_lines_by_losses ON slipway_job_lines (state, losses)",
        "CREATE INDEX slipway_job_batches_by_turn ON slipway_job_batches (status, tenant, id)",
    ),
    2: (),  # one more table, which `create_all` adds
    # Another one. Lines without a result, and batches, were not counted: they are few beside the results.
    3: (
        "INSERT INTO slipway_job_usage (tenant, bytes) SELECT slipway_job_batches.tenant, "
        "SUM(256 + LENGTH(custom_id) + COALESCE(LENGTH(result), 0)) FROM slipway_job_lines JOIN slipway_job_batches "
        "ON slipway_job_batches.id = slipway_job_lines.batch_id GROUP BY slipway_job_batches.tenant",
    ),
}


def upgrade(connection: Connection) -> bool:
    """Upgrades the tables; returns whether they are those of this release now, False when a newer one made them."""
    versions = connection.execute(select(about.c.version)).scalars().all()
    if not versions:
        connection.execute(about.insert().values(version=SCHEMA_VERSION))
        return True
    # An older release that starts later may have added its own version.
    found = max(versions)
    connection.execute(delete(about).where(about.c.version < found))
    if found > SCHEMA_VERSION:
        return False
    for version in range(found, SCHEMA_VERSION):
        for statement in _STATEMENTS[version]:
            connection.exec_driver_sql(statement)
    connection.execute(update(about).values(version=SCHEMA_VERSION))
    return True
