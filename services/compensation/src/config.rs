//! Configuration of the service, from the environment.

use std::{net::SocketAddr, time::Duration};

use infra::config::{ConfigError, Connections, Env};

/// Everything the service can be told, with the cost of too low and too high.
#[derive(Clone, Debug)]
pub struct CompensationConfig {
    pub connections: Connections,
    /// `DOORBUSTER_COMPENSATION_ADMIN` (default 0.0.0.0:9103): health and metrics.
    pub admin: SocketAddr,
    /// `DOORBUSTER_COMPENSATION_MEMBERS` (default 1): group members, a polling thread each. One polls far more than one Redis settles; more only
    /// spread the partitions.
    pub members: usize,
    /// `DOORBUSTER_COMPENSATION_BATCH` (default 500 events): settled in one pipeline. Low: a round trip for few events; high: a longer stop of the
    /// purchases that share Redis.
    pub batch: usize,
    /// `DOORBUSTER_COMPENSATION_QUEUE` (default 5000 events): waiting in memory per partition before it is paused.
    pub queue: usize,
    /// `DOORBUSTER_COMPENSATION_COMMIT_MS` (default 500): between commits of the group's offsets. High: more SKIPs after a crash.
    pub commit_interval: Duration,
    /// `DOORBUSTER_COMPENSATION_WARDEN_MS` (default 1000): between looks at every voucher. Low: load on Postgres and Redis; high: a loss in Redis
    /// without traffic is found later.
    pub warden_interval: Duration,
    /// `DOORBUSTER_COMPENSATION_DEEP_CHECK_MS` (default 60000): between counts of all reservations and held units of a voucher at rest.
    pub deep_check_interval: Duration,
    /// `DOORBUSTER_COMPENSATION_WARMING_MS` (default 3000): longest wait of a repair for requests in flight at its start. Low: a rebuilt voucher may
    /// offer too much (the lanes reject it); high: purchases get 503 for longer where a lane is down.
    pub warming_wait: Duration,
    /// `DOORBUSTER_COMPENSATION_SWEEP_MARGIN_MS` (default 5000): what the clocks of Redis and the brokers may differ by. Low: requests still
    /// on their way are published twice (harmless: the second is repeated); high: orphans wait longer.
    pub sweep_margin: Duration,
    /// `DOORBUSTER_COMPENSATION_SWEEP_ALARM` (default 3): tries for one order after which the sweeper raises an alarm.
    pub sweep_alarm: u32,
    /// `DOORBUSTER_COMPENSATION_ARCHIVE_HOURS` (default 168, a week): after the end of a voucher's window Redis forgets it. Orders of it that are paid
    /// or cancelled later change only the log and Postgres.
    pub archive_after: Duration,
    /// `DOORBUSTER_COMPENSATION_BREACH_MS` (default 600000): a second breach of conservation within it leaves the voucher frozen.
    pub breach_window: Duration,
    /// `DOORBUSTER_COMPENSATION_DRAIN_MS` (default 5000): longest wait for the batch in flight when a partition goes. Must stay well below the
    /// group's session time-out.
    pub drain_deadline: Duration,
    /// `DOORBUSTER_COMPENSATION_START_MS` (default 60000): how long a start waits for servers that cannot be reached.
    pub start_patience: Duration,
    /// `DOORBUSTER_COMPENSATION_WATCHDOG_MS` (default 60000): one turn of a member, a call that blocks or a read of the log that gets nowhere for
    /// longer ends the process. Low: a slow Kafka ends processes; high: a partition stands still for longer.
    pub watchdog: Duration,
}

impl CompensationConfig {
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        Ok(Self {
            connections: Connections::from_env(env)?,
            admin: env.address("DOORBUSTER_COMPENSATION_ADMIN", "0.0.0.0:9103")?,
            members: env.number("DOORBUSTER_COMPENSATION_MEMBERS", 1, 1..=16)?,
            batch: env.number("DOORBUSTER_COMPENSATION_BATCH", 500, 1..=5_000)?,
            queue: env.number("DOORBUSTER_COMPENSATION_QUEUE", 5_000, 10..=100_000)?,
            commit_interval: env.millis("DOORBUSTER_COMPENSATION_COMMIT_MS", 500, 10..=60_000)?,
            warden_interval: env.millis("DOORBUSTER_COMPENSATION_WARDEN_MS", 1_000, 20..=60_000)?,
            deep_check_interval: env.millis("DOORBUSTER_COMPENSATION_DEEP_CHECK_MS", 60_000, 20..=3_600_000)?,
            warming_wait: env.millis("DOORBUSTER_COMPENSATION_WARMING_MS", 3_000, 0..=60_000)?,
            sweep_margin: env.millis("DOORBUSTER_COMPENSATION_SWEEP_MARGIN_MS", 5_000, 0..=300_000)?,
            sweep_alarm: env.number("DOORBUSTER_COMPENSATION_SWEEP_ALARM", 3, 1..=100)?,
            archive_after: Duration::from_secs(
                3_600 * env.number::<u64>("DOORBUSTER_COMPENSATION_ARCHIVE_HOURS", 168, 1..=87_600)?,
            ),
            breach_window: env.millis("DOORBUSTER_COMPENSATION_BREACH_MS", 600_000, 1_000..=86_400_000)?,
            drain_deadline: env.millis("DOORBUSTER_COMPENSATION_DRAIN_MS", 5_000, 100..=60_000)?,
            start_patience: env.millis("DOORBUSTER_COMPENSATION_START_MS", 60_000, 0..=3_600_000)?,
            watchdog: env.millis("DOORBUSTER_COMPENSATION_WATCHDOG_MS", 60_000, 1_000..=600_000)?,
        })
    }

    /// How long after its stamp a reservation's request may still reach the log, in milliseconds.
    pub(crate) fn sweep_after_ms(&self) -> i64 {
        let span = self.connections.delivery_timeout + self.sweep_margin;
        i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
    }

    pub(crate) fn archive_after_ms(&self) -> i64 {
        i64::try_from(self.archive_after.as_millis()).unwrap_or(i64::MAX)
    }
}
