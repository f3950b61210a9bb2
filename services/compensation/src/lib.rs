//! The single writer of decided state into Redis: settle, repair, sweeper, warden.

use infra::{config::Env, shutdown::CancellationToken};

/// Runs the service until `stop`, then finishes what is in flight and returns.
pub async fn run(env: &Env, stop: CancellationToken) -> anyhow::Result<()> {
    let _ = (env, stop);
    todo!()
}
