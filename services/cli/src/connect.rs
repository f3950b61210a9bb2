//! Which servers a verb talks to: those of the environment, else those of the stack that `up` started in this folder.

use std::path::Path;

use anyhow::Context;
use events::Codec;
use infra::config::{Connections, Env};

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

/// Looks the schemas up.
pub(crate) async fn codec(connections: &Connections) -> anyhow::Result<Codec> {
    let registry = connections.schema_registry()?;
    Ok(Codec::connect(&registry, &connections.topics).await?)
}
