//! The orders service: one consumer, a lane a partition.

use infra::{config::Env, shutdown::CancellationToken};

/// Runs the service until `stop`, then finishes what is in flight and returns.
pub async fn run(env: &Env, stop: CancellationToken) -> anyhow::Result<()> {
    let _ = (env, stop);
    todo!()
}
