//! The schema's version. `migrate` alone changes it, forward only; services refuse to start on another version.

use refinery::{Migration, Runner};
use tokio_postgres::{Client, error::SqlState};

use super::{DatabaseError, Pool, connect, look_up};
use crate::config::Connections;

/// Every migration there is, in order. Published ones never change: refinery compares their checksums.
const MIGRATIONS: [(&str, &str); 1] = [("V1__create_orders", include_str!("../../../../migrations/V1__create_orders.sql"))];

/// The version of the schema that these migrations lead to.
pub const SCHEMA_VERSION: i32 = MIGRATIONS.len() as i32;

/// The key of the advisory lock under which one process at a time migrates a database; refinery takes none itself.
const MIGRATION_LOCK: i64 = 0x646f_6f72_6275_7374;

fn runner() -> Result<Runner, DatabaseError> {
    let migrations: Result<Vec<_>, _> = MIGRATIONS.iter().map(|(name, sql)| Migration::unapplied(name, sql)).collect();
    Ok(Runner::new(&migrations?))
}

/// Brings the schema to this version under an advisory lock; gives the names of the migrations it ran.
///
/// Waits for another process that is migrating. The lock belongs to the session that migrates, so a dead process leaves none behind.
pub async fn migrate(connections: &Connections) -> Result<Vec<String>, DatabaseError> {
    let mut client = connect(connections).await?;
    // Building an index on a large table, or waiting for somebody else's migration, may take long.
    client.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0").await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
    migrate_here(&mut client).await
}

/// As [`migrate`], in the schema that this session's `search_path` begins with; the caller sees to it that nobody else does it.
pub async fn migrate_here(client: &mut Client) -> Result<Vec<String>, DatabaseError> {
    let report = runner()?.run_async(client).await?;
    Ok(report.applied_migrations().iter().map(ToString::to_string).collect())
}

/// Migrations that `migrate` would run.
pub async fn pending_migrations(connections: &Connections) -> Result<Vec<String>, DatabaseError> {
    let client = connect(connections).await?;
    let applied = if has_history(&client).await? {
        client.query("SELECT version FROM refinery_schema_history", &[]).await?
    } else {
        Vec::new()
    };
    let applied: Vec<i32> = applied.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let runner = runner()?;
    let pending = runner.get_migrations().iter().filter(|m| !applied.contains(&(m.version())));
    Ok(pending.map(ToString::to_string).collect())
}

/// Refuses unless the schema is at exactly this version.
pub async fn check_schema(pool: &Pool) -> Result<(), DatabaseError> {
    let found = match look_up(pool, "SELECT coalesce(max(version), 0) FROM refinery_schema_history", &[]).await {
        Ok(rows) => rows.first().map_or(Ok(0), |row| row.try_get(0))?,
        Err(DatabaseError::Postgres(error)) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => 0,
        Err(error) => return Err(error),
    };
    let needed = SCHEMA_VERSION;
    if found == needed { Ok(()) } else { Err(DatabaseError::SchemaVersion { found, needed }) }
}

async fn has_history(client: &Client) -> Result<bool, DatabaseError> {
    let row = client.query_one("SELECT to_regclass('refinery_schema_history') IS NOT NULL", &[]).await?;
    Ok(row.try_get(0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_from_one_without_gaps() {
        let versions: Vec<_> = runner().unwrap().get_migrations().iter().map(|m| m.version() as usize).collect();
        assert_eq!(versions, (1..=MIGRATIONS.len()).collect::<Vec<_>>());
    }
}
