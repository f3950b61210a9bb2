//! The start: connects to all servers and checks that they are fit.

use std::time::Duration;

use anyhow::Context;
use infra::{
    config::Connections,
    postgres::{self, DatabaseError},
    shutdown::CancellationToken,
    start::Wait,
};
use publish::RequestProducer;

use crate::{log_ends::LogEndsReader, readiness::Health, servers::RealServers};

/// Connections to Postgres, which only repeats, readers of decided orders and unknown vouchers need.
const POOL_SIZE: usize = 8;

/// Connects to all servers, waiting for those that are away, but for Postgres: purchases go on without it. `stop` ends the thread started
/// here.
pub(crate) async fn connect(
    connections: &Connections,
    patience: Duration,
    health: &Health,
    stop: CancellationToken,
) -> anyhow::Result<RealServers> {
    let told = |reason| health.set("start", Some(reason));
    let wait = Wait::new(connections, patience, &told);
    let store = wait.redis().await?;
    wait.topics().await?;
    let codec = wait.schemas().await?;
    let pool = postgres::pool(connections, POOL_SIZE)?;
    if let Err(error @ DatabaseError::SchemaVersion { .. }) = postgres::check_schema(&pool).await {
        return Err(error.into());
    }
    let producer = RequestProducer::new(connections, codec).context("cannot make a producer")?;
    let log_ends = LogEndsReader::start(connections, stop)?;
    Ok(RealServers { store, producer, pool, log_ends, requests_topic: connections.topics.requests.clone() })
}
