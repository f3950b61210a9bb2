//! The start: wrong settings end it with one clear line; servers that cannot be reached are waited for, but not for ever.

use std::time::{Duration, Instant};

use anyhow::Context;
use events::{Codec, ConnectError, Registry, RegistryError};
use infra::{
    config::Connections,
    kafka::{self, LogError},
    postgres::{self, DatabaseError},
    redis::{Store, StoreError},
    shutdown::CancellationToken,
};
use publish::RequestProducer;

use crate::{log_ends::LogEndsReader, readiness::Health, servers::RealServers};

/// Pause between two tries to reach a server.
const PAUSE: Duration = Duration::from_millis(500);

/// Connections to Postgres, which only repeats, readers of decided orders and unknown vouchers need.
const POOL_SIZE: usize = 8;

/// Why a try to start with one server failed.
enum Failure {
    /// It may be there later.
    Away(anyhow::Error),
    /// Waiting does not help.
    Wrong(anyhow::Error),
}

/// Connects to all servers and checks that they are fit. `stop` ends the thread started here.
pub(crate) async fn connect(
    connections: &Connections,
    patience: Duration,
    health: &Health,
    stop: CancellationToken,
) -> anyhow::Result<RealServers> {
    let wait = Wait { deadline: Instant::now() + patience, health };
    let store = wait.until(|| async { Store::connect(&connections.redis).await.map_err(of_redis) }).await?;
    wait.until(|| async {
        let connections = connections.clone();
        let checked = tokio::task::spawn_blocking(move || kafka::check_topics(&connections)).await;
        checked.map_err(|e| Failure::Wrong(e.into()))?.map_err(of_kafka)
    })
    .await?;
    let registry = Registry::new(&connections.registry)?;
    let codec = wait.until(|| async { Codec::connect(&registry, &connections.topics).await.map_err(of_registry) }).await?;
    let pool = postgres::pool(connections, POOL_SIZE)?;
    if let Err(error @ DatabaseError::SchemaVersion { .. }) = postgres::check_schema(&pool).await {
        return Err(error.into());
    }
    let producer = RequestProducer::new(connections, codec).context("cannot make a producer")?;
    let log_ends = LogEndsReader::start(connections, stop)?;
    Ok(RealServers { store, producer, pool, log_ends, requests_topic: connections.topics.requests.clone() })
}

struct Wait<'a> {
    deadline: Instant,
    health: &'a Health,
}

impl Wait<'_> {
    // Not AsyncFnMut: the future of `run` would no longer be Send.
    async fn until<T, F: Future<Output = Result<T, Failure>>>(&self, mut attempt: impl FnMut() -> F) -> anyhow::Result<T> {
        let mut told = false;
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(Failure::Wrong(error)) => return Err(error),
                Err(Failure::Away(error)) if Instant::now() >= self.deadline => return Err(error.context("gave up waiting")),
                Err(Failure::Away(error)) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(error = format!("{error:#}"), "waiting for a server");
                    }
                    self.health.set("start", Some(error.to_string()));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn of_redis(error: StoreError) -> Failure {
    match error {
        StoreError::Unfit { .. } | StoreError::Damaged { .. } => Failure::Wrong(error.into()),
        StoreError::Unknown(_) | StoreError::Unavailable(_) => Failure::Away(error.into()),
    }
}

fn of_kafka(error: LogError) -> Failure {
    match error {
        LogError::Kafka(_) | LogError::Unreachable { .. } => Failure::Away(error.into()),
        _ => Failure::Wrong(error.into()),
    }
}

fn of_registry(error: ConnectError) -> Failure {
    match error {
        ConnectError::Registry(RegistryError::Unavailable { .. }) => Failure::Away(error.into()),
        _ => Failure::Wrong(error.into()),
    }
}
