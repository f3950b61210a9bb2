//! Why the log could not be read to its end, or a store not be asked.

use domain::VoucherId;
use events::RegistryError;
use infra::{kafka::LogError, postgres::DatabaseError, redis::StoreError};

/// Why something could not be told. None of these says that anything is wrong with orders.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The beginning of the history was deleted: whatever is folded from the rest is not the whole.
    #[error("{0}")]
    Deleted(String),
    /// A record of `order-events` that cannot be understood, or was written by a newer version.
    #[error("partition {partition} of {topic}, offset {offset}: {problem}")]
    Record { topic: String, partition: i32, offset: i64, problem: String },
    /// Only its row names the partition in which it lives.
    #[error("Postgres has no voucher {0}; if the log has, name its partition with --partition")]
    UnknownVoucher(VoucherId),
    /// The database in which tables are built beside the live one. Its own words name the variable of the live one.
    #[error("{}", .0.to_string().replace("DOORBUSTER_POSTGRES", "--into"))]
    Into(DatabaseError),
    /// Between the comparison and the swap; nothing is tried again.
    #[error("the log went wrong after the comparison: {0}; rebuild again")]
    WentWrong(String),
    /// What is to be shown ends before it begins.
    #[error("the first event to be shown is at offset {from} (--from), but --to ends before offset {to}")]
    Backwards { from: i64, to: i64 },
    /// The file of a snapshot cannot be written, or not be used.
    #[error("{path}: {problem}")]
    File { path: String, problem: String },
    /// Somebody else rebuilds into the same database.
    #[error("a rebuild is going on in this database already (process {pid} of Postgres)")]
    Busy { pid: i32 },
    /// Somebody else has to do something first, or to end what he does.
    #[error("{0}")]
    NotNow(String),
    /// The answer to a COMMIT did not come. Either way the tables are whole.
    #[error("it is not known whether this was committed: {0}; the same command again shows it")]
    Unknown(DatabaseError),
    /// The program itself failed.
    #[error("a reading thread failed")]
    Thread,
}

impl From<tokio_postgres::Error> for ReplayError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}
