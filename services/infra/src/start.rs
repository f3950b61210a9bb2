//! The start of a service: what is wrong ends it with one clear line; servers that cannot be reached are waited for, but not for ever.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use events::{Codec, ConnectError, RegistryError};
use tokio::sync::oneshot;

use crate::{
    config::Connections,
    kafka::{self, LogError},
    postgres::{self, DatabaseError, Pool},
    redis::{Store, StoreError},
};

/// Pause between two tries to reach a server.
const PAUSE: Duration = Duration::from_millis(500);

/// An error that may pass by itself, because a server is only away.
trait MayPass: Into<anyhow::Error> {
    fn may_pass(&self) -> bool;
}

impl MayPass for StoreError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Unavailable(_))
    }
}

impl MayPass for LogError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Kafka(_) | Self::Unreachable { .. })
    }
}

impl MayPass for ConnectError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Registry(RegistryError::Unavailable { .. }))
    }
}

impl MayPass for DatabaseError {
    fn may_pass(&self) -> bool {
        self.fault() == postgres::Fault::Again
    }
}

/// Waits for the servers of a deployment, all together until one deadline.
pub struct Wait<'a> {
    connections: &'a Connections,
    deadline: Instant,
    /// Is told, again and again, what the start waits for.
    told: &'a (dyn Fn(String) + Sync),
}

impl<'a> Wait<'a> {
    pub fn new(connections: &'a Connections, patience: Duration, told: &'a (dyn Fn(String) + Sync)) -> Self {
        Self { connections, deadline: Instant::now() + patience, told }
    }

    /// Redis, found fit.
    pub async fn redis(&self) -> anyhow::Result<Store> {
        self.until(|| Store::connect(&self.connections.redis)).await
    }

    /// The topics, found fit; gives their partition count.
    pub async fn topics(&self) -> anyhow::Result<i32> {
        self.until(|| {
            let connections = self.connections.clone();
            kafka::blocking(move || kafka::check_topics(&connections))
        })
        .await
    }

    /// The schemas, registered.
    pub async fn schemas(&self) -> anyhow::Result<Codec> {
        let registry = self.connections.schema_registry()?;
        self.until(|| Codec::connect(&registry, &self.connections.topics)).await
    }

    /// The tables, at this version.
    pub async fn tables(&self, pool: &Pool) -> anyhow::Result<()> {
        self.until(|| postgres::check_schema(pool)).await
    }

    // Not AsyncFnMut: the future of a service's `run` would no longer be Send.
    async fn until<T, E: MayPass, F: Future<Output = Result<T, E>>>(&self, mut attempt: impl FnMut() -> F) -> anyhow::Result<T> {
        let mut is_told = false;
        loop {
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(error) if !error.may_pass() => return Err(error.into()),
                Err(error) => error.into(),
            };
            if Instant::now() >= self.deadline {
                return Err(error.context("gave up waiting"));
            }
            let reason = format!("{error:#}");
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(reason, "waiting for a server");
            }
            (self.told)(reason);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Runs `work`, which blocks, to its end on a thread of its own.
pub async fn on_thread(name: String, work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    let (done, ended) = oneshot::channel();
    let thread = thread::Builder::new().name(name.clone());
    thread.spawn(move || drop(done.send(work()))).with_context(|| format!("the thread {name} cannot be started"))?;
    ended.await.with_context(|| format!("the thread {name} panicked"))?
}
