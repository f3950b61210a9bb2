//! Which servers a verb talks to: those of the environment, else those of the stack that `up` started in this folder.

use std::path::Path;

use anyhow::Context;
use events::Codec;
use infra::{
    config::{Connections, Env},
    kafka::LogError,
};

use crate::stack;

/// The variables of this process, with the running stack's servers where `DOORBUSTER_*` names none.
pub(crate) fn env() -> Env {
    let own = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let stack = devstack::detached::endpoints(Path::new(stack::DEFAULT_FOLDER)).map(|e| e.env()).unwrap_or_default();
    // Later ones win. Set but empty counts as not set, as everywhere.
    let own = own.filter(|(_, value)| !value.is_empty());
    Env::of(stack.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own))
}

pub(crate) fn connections() -> anyhow::Result<Connections> {
    Connections::from_env(&env()).context("which servers? set the variable, or start a stack here with `doorbuster up`")
}

/// The servers, with the schemas looked up.
pub(crate) async fn log() -> anyhow::Result<(Connections, Codec)> {
    let connections = connections()?;
    let codec = codec(&connections).await?;
    Ok((connections, codec))
}

/// A call of Kafka's, which blocks.
pub(crate) async fn kafka<T: Send + 'static>(
    connections: &Connections,
    call: impl FnOnce(&Connections) -> Result<T, LogError> + Send + 'static,
) -> anyhow::Result<T> {
    let connections = connections.clone();
    Ok(tokio::task::spawn_blocking(move || call(&connections)).await??)
}

/// How many partitions the topics have, found fit.
pub(crate) async fn partitions(connections: &Connections) -> anyhow::Result<i32> {
    kafka(connections, infra::kafka::check_topics).await
}

/// Looks the schemas up.
pub(crate) async fn codec(connections: &Connections) -> anyhow::Result<Codec> {
    let registry = connections.schema_registry()?;
    Ok(Codec::connect(&registry, &connections.topics).await?)
}
