//! The HTTP gate: reserves in Redis, emits OrderRequested.
//!
//! `purchase` holds the rules of one purchase, `orders` those of reading one; `http` is how buyers reach them.

mod auth;
mod config;
mod generations;
mod http;
mod instants;
mod log_ends;
mod metrics;
mod orders;
mod purchase;
mod rate;
mod readiness;
#[cfg(test)]
mod scripted;
mod servers;
mod start;
mod unacknowledged;
mod vouchers;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use infra::{
    config::{Connections, Env},
    shutdown::CancellationToken,
    telemetry,
};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::task::TaskTracker;

pub use crate::config::{DEMO_SECRET_PREFIX, PurchaseConfig};
use crate::{
    http::Shop, metrics::Metrics, purchase::Purchases, rate::RateLimit, readiness::Health, servers::RealServers,
    unacknowledged::Unacknowledged,
};

/// Runs the service until `stop`, then finishes what is in flight and returns, within the configured deadline.
///
/// Fails at the start where a setting or a server is wrong, or a server stays unreachable.
pub async fn run(env: &Env, stop: CancellationToken) -> anyhow::Result<()> {
    let config = PurchaseConfig::from_env(env)?;
    let connections = Connections::from_env(env)?;
    anyhow::ensure!(
        jsonwebtoken::crypto::CryptoProvider::try_get_default().is_some(),
        "built without exactly one cryptography provider for tokens"
    );
    let mut registry = Registry::with_prefix("doorbuster_purchase");
    let metrics = Metrics::new(&mut registry);
    let health = Arc::new(Health::starting());
    // Ends what runs beside the calls, when this function ends: until then others must see that it is not ready.
    let beside = CancellationToken::new();
    let _ended = beside.clone().drop_guard();
    let admin = telemetry::serve_admin(config.admin, Arc::new(registry), health.readiness(), beside.clone()).await;
    let admin = admin.with_context(|| format!("cannot listen on DOORBUSTER_PURCHASE_ADMIN={}", config.admin))?;

    let connecting = start::connect(&connections, config.start_patience, &health, beside.clone());
    let Some(servers) = stop.run_until_cancelled(connecting).await else { return Ok(()) };
    let servers = servers?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on DOORBUSTER_PURCHASE_LISTEN={}", config.listen))?;
    let tasks = TaskTracker::new();
    let shutdown_deadline = config.shutdown_deadline;
    let shop = Arc::new(shop(config, servers, tasks.clone(), metrics));
    let purchases = Arc::clone(&shop.purchases);
    tokio::spawn(readiness::probe(Arc::clone(&health), Arc::clone(&purchases), beside.clone()));
    health.set("start", None);
    telemetry::announce(env, &[("http", listener.local_addr()?), ("admin", admin)])?;

    let mut serving = tokio::spawn(http::serve(listener, http::router(shop), stop.clone()));
    tokio::select! {
        () = stop.cancelled() => {}
        ended = &mut serving => ended.context("the listener ended")?,
    }
    health.stopping();
    finish(serving, &tasks, &purchases, shutdown_deadline).await
}

fn shop(config: PurchaseConfig, servers: RealServers, tasks: TaskTracker, metrics: Metrics) -> Shop<RealServers> {
    let gauge = metrics.unacknowledged.clone();
    let unacknowledged = Unacknowledged::new(config.max_unacknowledged, config.unacknowledged_too_long, gauge);
    let purchases = Purchases::new(servers, unacknowledged, config.ack_deadline, tasks.clone(), metrics);
    Shop {
        purchases: Arc::new(purchases),
        verifier: config.verifier,
        order_key: config.order_key,
        rate: RateLimit::new(config.user_rate, config.user_burst, Instant::now()),
        purchases_at_once: Arc::new(Semaphore::new(config.max_in_flight)),
        patience: config.turn_patience,
        reads_at_once: Semaphore::new(config.max_in_flight),
        tasks,
    }
}

/// Answers who still waits, then waits for acknowledgements, then flushes; the deadline ends whichever of them it finds.
async fn finish(
    serving: tokio::task::JoinHandle<()>,
    tasks: &TaskTracker,
    purchases: &Arc<Purchases<RealServers>>,
    within: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + within;
    tasks.close();
    let answered_and_acknowledged = async {
        if !serving.is_finished() {
            let _ = serving.await;
        }
        tasks.wait().await;
    };
    let in_time = tokio::time::timeout_at(deadline.into(), answered_and_acknowledged).await.is_ok();
    let producer = purchases.servers.producer.clone();
    let left = tokio::task::spawn_blocking(move || producer.flush(deadline.saturating_duration_since(Instant::now()))).await?;
    if in_time && left == 0 {
        tracing::info!("stopped with nothing in flight");
    } else {
        // Their reservations stay, and the sweeper publishes them.
        tracing::warn!(records = left, pending = purchases.unacknowledged.count(), "stopped with orders not acknowledged");
    }
    Ok(())
}
