//! Postgres: the pool, the schema's version, and what others than the lanes read. The lane's own transaction is in `lane`.

mod out_record;

use domain::{Order, OrderId, Voucher, VoucherId};

pub use out_record::{OutRecord, StoredRecordsError};

use crate::config::Connections;

pub type Pool = deadpool_postgres::Pool;

/// Why Postgres gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("Postgres: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    #[error("Postgres: no connection: {0}")]
    Pool(#[from] deadpool_postgres::PoolError),
    #[error("Postgres did not answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The schema is older or newer than this version, or was never made.
    #[error("the database's schema is at version {found}, this version needs {needed}: run `doorbuster migrate --apply`")]
    SchemaVersion { found: i32, needed: i32 },
    #[error("bad address of Postgres: {0}")]
    Address(String),
    /// A row holds what this version does not understand.
    #[error("table {table}: {problem}")]
    Row { table: &'static str, problem: String },
}

/// A pool with bounded size and time-outs on everything. Connects lazily.
pub fn pool(connections: &Connections, size: usize) -> Result<Pool, DatabaseError> {
    let _ = (connections, size);
    todo!()
}

/// Brings the schema to this version under an advisory lock; gives the names of the migrations it ran.
pub async fn migrate(connections: &Connections) -> Result<Vec<String>, DatabaseError> {
    let _ = connections;
    todo!()
}

/// Migrations that `migrate` would run.
pub async fn pending_migrations(connections: &Connections) -> Result<Vec<String>, DatabaseError> {
    let _ = connections;
    todo!()
}

/// Refuses unless the schema is at exactly this version.
pub async fn check_schema(pool: &Pool) -> Result<(), DatabaseError> {
    let _ = pool;
    todo!()
}

pub async fn order(pool: &Pool, order: &OrderId) -> Result<Option<Order>, DatabaseError> {
    let _ = (pool, order);
    todo!()
}

pub async fn voucher(pool: &Pool, voucher: &VoucherId) -> Result<Option<Voucher>, DatabaseError> {
    let _ = (pool, voucher);
    todo!()
}

/// All vouchers, or those of some partitions, ordered by id.
pub async fn vouchers(pool: &Pool, partitions: Option<&[i32]>) -> Result<Vec<Voucher>, DatabaseError> {
    let _ = (pool, partitions);
    todo!()
}

/// Position of a partition's lane: the next request offset to decide; `None`: no lane has ever worked on it.
pub async fn next_offset(pool: &Pool, topic: &str, partition: i32) -> Result<Option<i64>, DatabaseError> {
    let _ = (pool, topic, partition);
    todo!()
}
