//! Postgres: connections with time-outs on everything, the schema's version, and what others than the lanes read. The lane's own
//! transaction is in `lane`.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod, Runtime};
use domain::{Order, OrderId, Voucher, VoucherId};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Row, types::ToSql};

use crate::config::Connections;

mod address;
mod fault;
pub mod lane;
mod out_record;
pub mod rows;
mod schema;

pub use fault::Fault;
pub use out_record::{OutRecord, StoredRecordsError};
pub use schema::{SCHEMA_VERSION, check_schema, migrate, migrate_here, pending_migrations};

use address::Address;
use rows::{ORDER_COLUMNS, VOUCHER_COLUMNS, order_of, voucher_of};

pub type Pool = deadpool_postgres::Pool;

/// Longest wait for a new connection. Longer only delays the next try.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// After this long without acknowledged bytes a connection is dead; the kernel alone would wait for minutes.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for a free connection of a pool.
const POOL_WAIT: Duration = Duration::from_secs(2);

/// Longest wait for one look-up, above the server's own `statement_timeout`: it ends only calls whose server has vanished.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(7);

/// What the server itself ends, unless the address brings `options` of its own.
const SESSION_OPTIONS: &str =
    "-c statement_timeout=5000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=10000 -c timezone=UTC";

/// Why Postgres gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    // Its causes are in its text, so they are not told as a source again.
    #[error("Postgres: {}", described(.0))]
    Postgres(tokio_postgres::Error),
    #[error("no connection to Postgres (DOORBUSTER_POSTGRES): {0}")]
    Pool(String),
    #[error("Postgres (DOORBUSTER_POSTGRES) did not answer within {0:?}")]
    Timeout(Duration),
    /// The schema is older or newer than this version, or was never made.
    #[error("the database's schema is at version {found}, this version needs {needed}: run `doorbuster migrate --apply`")]
    SchemaVersion { found: i32, needed: i32 },
    #[error("migration: {0}")]
    Migration(#[from] refinery::Error),
    #[error("DOORBUSTER_POSTGRES is no address of Postgres: {0}")]
    Address(String),
    /// A row holds what this version does not understand.
    #[error("table {table}: {problem}")]
    Row { table: &'static str, problem: String },
    /// A voucher that a batch opens was opened on another partition meanwhile: read the facts again and decide again.
    #[error("a voucher of this batch was published on another partition at the same time")]
    VoucherTaken,
    /// The table holds newer or foreign rows than the facts said.
    #[error("{expected} rows of {table} were to be written, but {written} were")]
    Rows { table: &'static str, expected: u64, written: u64 },
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<deadpool_postgres::PoolError> for DatabaseError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::Pool(match error {
            deadpool_postgres::PoolError::Backend(error) => described(&error),
            other => other.to_string(),
        })
    }
}

/// The server's own words where there are any; tokio-postgres prints only "db error".
fn described(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) => {
            let constraint = db.constraint().map(|name| format!(" (constraint {name})")).unwrap_or_default();
            let remedy = address::remedy(db.code().code());
            format!("{} {}{constraint}{remedy}", db.code().code(), db.message())
        }
        (None, Some(source)) => {
            let text = format!("{error}: {source}");
            let remedy = if text.contains("TLS") { address::TLS_REMEDY } else { "" };
            format!("{text}{remedy}")
        }
        (None, None) => error.to_string(),
    }
}

fn address(connections: &Connections) -> Result<Address, DatabaseError> {
    let mut address = Address::parse(&connections.postgres).map_err(DatabaseError::Address)?;
    let config = &mut address.config;
    if config.get_options().is_none() {
        config.options(SESSION_OPTIONS);
    }
    if config.get_application_name().is_none() {
        config.application_name("doorbuster");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config.tcp_user_timeout(TCP_USER_TIMEOUT);
    config.keepalives_idle(Duration::from_secs(10)).keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
    Ok(address)
}

/// A connection of the caller's own. Its I/O runs as a task of the current runtime until the client is dropped.
pub async fn connect(connections: &Connections) -> Result<Client, DatabaseError> {
    Ok(connect_with_task(connections).await?.0)
}

/// The same, with the task, which ends once the client is dropped and the server is told.
async fn connect_with_task(connections: &Connections) -> Result<(Client, JoinHandle<()>), DatabaseError> {
    let Address { config, tls } = address(connections)?;
    let (client, connection) = config.connect(tls).await.map_err(|error| DatabaseError::Pool(described(&error)))?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "Postgres connection ended");
        }
    });
    Ok((client, task))
}

/// A pool with bounded size and time-outs on everything. Connects lazily.
pub fn pool(connections: &Connections, size: usize) -> Result<Pool, DatabaseError> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Verified };
    let Address { config, tls } = address(connections)?;
    Pool::builder(Manager::from_config(config, tls, recycling))
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .recycle_timeout(Some(POOL_WAIT))
        .build()
        .map_err(|e| DatabaseError::Address(e.to_string()))
}

/// Runs one constant statement. A connection that did not answer in time is not put back.
async fn look_up(pool: &Pool, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, DatabaseError> {
    let client = pool.get().await?;
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, async {
        let statement = client.prepare_cached(sql).await?;
        client.query(&statement, params).await
    });
    match answer.await {
        Ok(rows) => Ok(rows?),
        Err(_) => {
            drop(deadpool_postgres::Object::take(client));
            Err(DatabaseError::Timeout(LOOKUP_TIMEOUT))
        }
    }
}

pub async fn order(pool: &Pool, order: &OrderId) -> Result<Option<Order>, DatabaseError> {
    let sql = format!("SELECT {ORDER_COLUMNS} FROM orders WHERE order_id = $1");
    let rows = look_up(pool, &sql, &[&order.as_uuid()]).await?;
    rows.first().map(order_of).transpose()
}

pub async fn voucher(pool: &Pool, voucher: &VoucherId) -> Result<Option<Voucher>, DatabaseError> {
    let sql = format!("SELECT {VOUCHER_COLUMNS} FROM vouchers WHERE voucher_id = $1");
    let rows = look_up(pool, &sql, &[&voucher.as_str()]).await?;
    rows.first().map(voucher_of).transpose()
}

/// All vouchers, or those of some partitions, ordered by id.
pub async fn vouchers(pool: &Pool, partitions: Option<&[i32]>) -> Result<Vec<Voucher>, DatabaseError> {
    let sql =
        format!("SELECT {VOUCHER_COLUMNS} FROM vouchers WHERE $1::int[] IS NULL OR partition = ANY($1) ORDER BY voucher_id");
    let rows = look_up(pool, &sql, &[&partitions]).await?;
    rows.iter().map(voucher_of).collect()
}

const NEXT_OFFSET: &str = "SELECT next_offset FROM lane_positions WHERE topic = $1 AND partition = $2";

/// Position of a partition's lane: the next request offset to decide; `None`: no lane has ever worked on it.
pub async fn next_offset(pool: &Pool, topic: &str, partition: i32) -> Result<Option<i64>, DatabaseError> {
    let rows = look_up(pool, NEXT_OFFSET, &[&topic, &partition]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
}
