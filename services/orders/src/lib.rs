//! The orders service: one consumer, a lane a partition.
//!
//! [`consumer`] polls `order-requests` and hands bounded batches to the [`lane`] of each assigned partition. A lane decides a batch in one
//! Postgres transaction and publishes the events in one Kafka transaction; [`recover`] finds out where a partition stands after anything
//! went wrong; [`next_step`] is the table of what can go wrong.

mod assignment;
mod catch_up;
mod config;
mod consumer;
mod decide_batch;
mod fold;
mod lag;
mod lane;
mod mailbox;
mod metrics;
mod next_step;
mod recover;
mod session;

use std::{collections::BTreeMap, sync::Arc, thread};

use anyhow::Context;
pub use catch_up::{Behind, catch_up};
pub use config::OrdersConfig;
use events::Codec;
use infra::{
    config::Env,
    kafka::Probe,
    postgres,
    shutdown::CancellationToken,
    start::{self, Wait},
    telemetry,
    watchdog::{self, Beats},
};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Semaphore};

use crate::{
    mailbox::{Health, Mailbox},
    metrics::Metrics,
};

/// Connections for the check at start; lanes have connections of their own.
const START_CONNECTIONS: usize = 1;

/// Lanes that work at one moment, however few the cores: while one waits for Postgres, another waits for Kafka.
const MIN_TURNS: usize = 2;

/// What every part of the service shares.
struct Service {
    config: OrdersConfig,
    codec: Codec,
    probe: Probe,
    metrics: Metrics,
    beats: Arc<Beats>,
    /// The runtime on which the registry's client lives.
    handle: Handle,
    /// The lane of each assigned partition.
    lanes: Mutex<BTreeMap<i32, Arc<Mailbox>>>,
    /// As many lanes work at one moment as there are cores. Were it all of them, each would take what little has come to it, and the cost of
    /// small transactions would keep the consumer from bringing more.
    turns: Arc<Semaphore>,
    membership: Mutex<Membership>,
}

/// How this process stands to its consumer group.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Membership {
    /// The group has never given it an answer, not even an empty one.
    #[default]
    NotYet,
    Member,
    /// Put out, or not able to reach the group.
    Outside,
}

impl Service {
    fn readiness(&self) -> Result<(), String> {
        match *self.membership.lock() {
            Membership::NotYet => return Err("has not joined the consumer group yet".to_owned()),
            Membership::Outside => return Err("is not a member of the consumer group at the moment".to_owned()),
            Membership::Member => {}
        }
        for (partition, lane) in self.lanes.lock().iter() {
            match lane.health() {
                Health::Recovering | Health::Working => {}
                Health::Troubled(reason) => return Err(format!("partition {partition} is held up: {reason}")),
                Health::Stopped(reason) => return Err(format!("partition {partition} has stopped: {reason}")),
            }
        }
        Ok(())
    }
}

/// Runs the service until `stop`, then finishes what is in flight and returns.
///
/// Fails at start where the topics, the tables, the schemas or a variable are not as they must be or a server stays away, and later where the
/// group's consumer is beyond repair; whoever runs the process starts it again. Nothing that was decided can be lost by either.
pub async fn run(env: &Env, stop: CancellationToken) -> anyhow::Result<()> {
    let config = OrdersConfig::from_env(env)?;
    let connections = config.connections.clone();
    let wait = Wait::new(&connections, config.start_patience, &|_| {});
    let connecting = async {
        let partitions = wait.topics().await?;
        wait.tables(&postgres::pool(&connections, START_CONNECTIONS)?).await?;
        anyhow::Ok((partitions, wait.schemas().await?))
    };
    let Some(connected) = stop.run_until_cancelled(connecting).await else { return Ok(()) };
    let (partitions, codec) = connected?;
    let (metrics, registry) = Metrics::new();
    let service = Arc::new(Service {
        codec,
        probe: Probe::new(&connections).context("the reader of offsets cannot be made")?,
        metrics,
        beats: Arc::default(),
        handle: Handle::current(),
        lanes: Mutex::default(),
        turns: Arc::new(Semaphore::new(thread::available_parallelism().map_or(1, Into::into).max(MIN_TURNS))),
        membership: Mutex::default(),
        config,
    });

    let readiness = service.clone();
    let ready: telemetry::Readiness = Arc::new(move || readiness.readiness());
    // The listener answers until the lanes have ended: only then is there nothing to be seen any more.
    let ended = CancellationToken::new();
    let _end_listener = ended.clone().drop_guard();
    let listening = telemetry::serve_admin(service.config.admin, Arc::new(registry), ready, ended)
        .await
        .with_context(|| format!("cannot listen on {} (DOORBUSTER_ORDERS_ADMIN)", service.config.admin))?;
    telemetry::announce(env, &[("admin", listening)])?;
    tracing::info!(partitions, group = connections.group("orders"), "orders is starting");
    watchdog::start(&service.beats, service.config.watchdog).context("the watchdog cannot be started")?;
    lag::start(&service).context("the lag's thread cannot be started")?;

    start::on_thread("consumer".to_owned(), move || consumer::run(service, &stop)).await
}
