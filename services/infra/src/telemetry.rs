//! Logs, metrics, and the second listener with `/healthz`, `/readyz` and `/metrics`.

use std::{net::SocketAddr, sync::Arc};

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// Sends logs to stderr: `DOORBUSTER_LOG` filters (default `info`), `DOORBUSTER_LOG_FORMAT=json` for machines. Safe to call again.
pub fn init_logs() {
    todo!()
}

/// Says whether the service can do its work right now, and if not, why. Must answer at once, from state that is kept current elsewhere.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Binds the second listener and serves it in the background until `stop`: `/healthz` (alive), `/readyz` (200, or 503 with the reason), `/metrics` (Prometheus text).
/// Gives the address it got (port 0 asks for a free one).
pub async fn serve_admin(
    listen: SocketAddr,
    metrics: Arc<Registry>,
    ready: Readiness,
    stop: CancellationToken,
) -> std::io::Result<SocketAddr> {
    let _ = (listen, metrics, ready, stop);
    todo!()
}

/// Says where a service listens: one line in the log, and, where `DOORBUSTER_READY_FILE` names a file, the same as JSON
/// (`{"http":"127.0.0.1:1234",...}`), so that whoever asked for port 0 can find it. The file appears whole or not at all.
pub fn announce(env: &crate::config::Env, addresses: &[(&str, SocketAddr)]) -> std::io::Result<()> {
    let map: serde_json::Map<_, _> = addresses.iter().map(|(name, a)| ((*name).to_owned(), a.to_string().into())).collect();
    let json = serde_json::Value::Object(map).to_string();
    tracing::info!(listening = %json, "listening");
    let Some(file) = env.get("DOORBUSTER_READY_FILE") else { return Ok(()) };
    let unfinished = format!("{file}.{}", std::process::id());
    std::fs::write(&unfinished, json)?;
    std::fs::rename(&unfinished, file)
}
