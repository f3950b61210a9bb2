//! Configuration of the orders service, from the environment.

use std::{net::SocketAddr, time::Duration};

use infra::config::{ConfigError, Connections, Env};

/// Everything the orders service can be told. Each field names its variable, default and unit, and what too high and too low cost.
#[derive(Clone, Debug)]
pub struct OrdersConfig {
    pub connections: Connections,
    /// `DOORBUSTER_ORDERS_ADMIN` (default 0.0.0.0:9102): health and metrics. Port 0 takes a free one.
    pub admin: SocketAddr,
    /// `DOORBUSTER_ORDERS_BATCH_RECORDS` (default 1000 records): requests decided in one transaction. Low: the fixed cost of two transactions
    /// for few orders; high: each order of the batch waits for all of it.
    pub batch_records: usize,
    /// `DOORBUSTER_ORDERS_BATCH_BYTES` (default 1048576 bytes): likewise by size. One larger record is still taken, alone.
    pub batch_bytes: usize,
    /// `DOORBUSTER_ORDERS_BATCH_WAIT_MS` (default 2 ms): how long an idle lane waits for a batch to fill. High: latency at low load; low: small
    /// batches at medium load. A busy lane's next batch fills while it works, whatever this says.
    pub batch_wait: Duration,
    /// `DOORBUSTER_ORDERS_QUEUE_BATCHES` (default 4 batches): handed to a lane and not begun, before its partition is paused. High: memory, and
    /// more thrown away when a partition moves; low: fetching again after each pause.
    pub queue_batches: usize,
    /// `DOORBUSTER_ORDERS_REVOKE_MS` (default 2000 ms): how long a lane may take to finish what it has begun when its partition moves. High: the whole
    /// group's rebalance waits for it; low: the batch is published by the next owner's recovery.
    pub revoke_deadline: Duration,
    /// `DOORBUSTER_ORDERS_SHUTDOWN_MS` (default 10000 ms): how long shutdown may take. Low: as for revoke; high: deploys are slow where Kafka is away.
    pub shutdown_deadline: Duration,
    /// `DOORBUSTER_ORDERS_IDLE_CHECK_MS` (default 1000 ms): how often an idle lane compares its position with Postgres, and how often lag is
    /// measured. High: a restored Postgres is noticed later; low: needless queries.
    pub idle_check: Duration,
    /// `DOORBUSTER_ORDERS_MAX_DEAD_LETTERS` (default 1000 records): unreadable requests in a row after which a lane stops. High: a producer
    /// gone wrong drains the topic into dead letters; low: a short burst of rubbish stops the sale.
    pub max_dead_letters: u64,
    /// `DOORBUSTER_ORDERS_FOLD_EVENTS` (default 2000 events): events folded into Postgres in one transaction where Postgres is behind the log.
    pub fold_events: usize,
    /// `DOORBUSTER_ORDERS_RETRY_MAX_MS` (default 2000 ms): longest pause between two tries against a server that is away. High: a recovered
    /// server is noticed late; low: load on one that is struggling.
    pub retry_max: Duration,
    /// `DOORBUSTER_ORDERS_START_MS` (default 60000 ms): how long a start waits for servers that cannot be reached.
    pub start_patience: Duration,
    /// `DOORBUSTER_ORDERS_WATCHDOG_MS` (default 60000 ms): a lane's single attempt, or one turn of the consumer, that takes longer ends the
    /// process. Must stay above the transaction time-out; high: a partition stands still for longer.
    pub watchdog: Duration,
}

impl OrdersConfig {
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        const WATCHDOG: &str = "DOORBUSTER_ORDERS_WATCHDOG_MS";
        let connections = Connections::from_env(env)?;
        let watchdog = env.millis(WATCHDOG, 60_000, 1_000..=3_600_000)?;
        if watchdog <= connections.transaction_timeout {
            return Err(ConfigError::Invalid {
                name: WATCHDOG,
                value: watchdog.as_millis().to_string(),
                problem: format!(
                    "more than DOORBUSTER_TRANSACTION_TIMEOUT_MS ({}) is needed, or slow transactions end the process",
                    connections.transaction_timeout.as_millis()
                ),
            });
        }
        Ok(Self {
            admin: env.address("DOORBUSTER_ORDERS_ADMIN", "0.0.0.0:9102")?,
            batch_records: env.number("DOORBUSTER_ORDERS_BATCH_RECORDS", 1_000, 1..=10_000)?,
            batch_bytes: env.number("DOORBUSTER_ORDERS_BATCH_BYTES", 1 << 20, 1_024..=64 << 20)?,
            batch_wait: env.millis("DOORBUSTER_ORDERS_BATCH_WAIT_MS", 2, 0..=1_000)?,
            queue_batches: env.number("DOORBUSTER_ORDERS_QUEUE_BATCHES", 4, 1..=100)?,
            revoke_deadline: env.millis("DOORBUSTER_ORDERS_REVOKE_MS", 2_000, 100..=60_000)?,
            shutdown_deadline: env.millis("DOORBUSTER_ORDERS_SHUTDOWN_MS", 10_000, 100..=300_000)?,
            idle_check: env.millis("DOORBUSTER_ORDERS_IDLE_CHECK_MS", 1_000, 20..=60_000)?,
            max_dead_letters: env.number("DOORBUSTER_ORDERS_MAX_DEAD_LETTERS", 1_000, 1..=1_000_000_000)?,
            fold_events: env.number("DOORBUSTER_ORDERS_FOLD_EVENTS", 2_000, 1..=100_000)?,
            retry_max: env.millis("DOORBUSTER_ORDERS_RETRY_MAX_MS", 2_000, 50..=60_000)?,
            start_patience: env.millis("DOORBUSTER_ORDERS_START_MS", 60_000, 0..=3_600_000)?,
            watchdog,
            connections,
        })
    }
}
