//! The single writer of decided state into Redis: settle, repair, sweeper, warden.
//!
//! A **member** of the consumer group polls on a thread of its own ([`consumer`]). For each partition it owns there are four tasks on the
//! runtime, all stopped by one token when the partition goes: **settle** applies the partition's events to Redis in order, **repair**
//! rebuilds vouchers behind the gate `warming`, the **warden** looks for vouchers that need it, the **sweeper** publishes reservations that
//! nobody else will. A voucher under repair, or too broken to be repaired, holds up nobody: the stream passes its events by, and the
//! repair reads them from the log.

mod config;
mod consumer;
mod inspect;
mod metrics;
mod partition;
mod repair;
mod settle;
mod sweeper;
mod warden;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
pub use config::CompensationConfig;
use infra::{config::Env, kafka::Probe, postgres, shutdown::CancellationToken, start::Wait, telemetry, watchdog};
use parking_lot::Mutex;
use publish::RequestProducer;
use tokio::task::JoinSet;

use crate::{metrics::Metrics, partition::Service};

/// Connections to Postgres: each partition's repair and warden hold one for a moment, the sweeper rarely.
const POSTGRES_CONNECTIONS: usize = 6;
/// Between signs of life asked of Redis, for the readiness.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait at the end for what the sweeper has handed to its producer. What is left is swept again later.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// Runs the service until `stop`, then finishes what is in flight and returns.
///
/// Fails at start where Redis, the topics, the tables, the schemas or a variable are not as they must be or a server stays away, and later
/// where the group's consumer is beyond repair; whoever runs the process starts it again. Nothing that was decided can be lost by either.
pub async fn run(env: &Env, stop: CancellationToken) -> anyhow::Result<()> {
    let config = CompensationConfig::from_env(env)?;
    let connections = config.connections.clone();
    let pool = postgres::pool(&connections, POSTGRES_CONNECTIONS)?;
    let wait = Wait::new(&connections, config.start_patience, &|_| {});
    let connecting = async {
        let (partitions, store) = (wait.topics().await?, wait.redis().await?);
        wait.tables(&pool).await?;
        anyhow::Ok((partitions, store, wait.schemas().await?))
    };
    let Some(connected) = stop.run_until_cancelled(connecting).await else { return Ok(()) };
    let (partitions, store, codec) = connected?;
    let producer = RequestProducer::new(&connections, codec.clone()).context("the sweeper's producer cannot be made")?;
    let probe = Probe::new(&connections).context("the reader of offsets cannot be made")?;
    let (metrics, registry) = Metrics::new();
    let service = Arc::new(Service {
        config,
        store,
        pool,
        codec,
        producer,
        probe,
        metrics,
        beats: Arc::default(),
        partitions: Mutex::default(),
        joined: AtomicUsize::new(0),
        redis_answers: AtomicBool::new(true),
    });

    // The listener answers until the last member has ended.
    let ended = CancellationToken::new();
    let _end_listener = ended.clone().drop_guard();
    let listening = telemetry::serve_admin(service.config.admin, Arc::new(registry), service.readiness(), ended)
        .await
        .with_context(|| format!("cannot listen on {} (DOORBUSTER_COMPENSATION_ADMIN)", service.config.admin))?;
    telemetry::announce(env, &[("admin", listening)])?;
    tracing::info!(partitions, members = service.config.members, "compensation is starting");

    // A member that fails takes the others down in order, so that the process ends and is started again.
    let stop = stop.child_token();
    watchdog::start(&service.beats, service.config.watchdog).context("the watchdog cannot be started")?;
    tokio::spawn(watch_redis(service.clone(), stop.clone()));
    let mut members = JoinSet::new();
    for number in 0..service.config.members {
        members.spawn(consumer::run_on_thread(service.clone(), number, stop.clone()));
    }
    let mut outcome = Ok(());
    while let Some(member) = members.join_next().await {
        stop.cancel();
        outcome = outcome.and(member.context("a member of the group panicked").and_then(|outcome| outcome));
    }
    let left = {
        let service = service.clone();
        tokio::task::spawn_blocking(move || service.producer.flush(FLUSH_DEADLINE)).await?
    };
    if left > 0 {
        tracing::warn!(left, "requests of the sweeper were not acknowledged in time; their reservations are swept again later");
    }
    outcome
}

/// Keeps the readiness current, also where this process owns no partition.
async fn watch_redis(service: Arc<Service>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(PING_INTERVAL)).await.is_some() {
        service.redis_answers.store(service.store.ping().await.is_ok(), Ordering::Relaxed);
    }
}
