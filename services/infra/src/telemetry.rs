//! Logs, metrics, and the second listener with `/healthz`, `/readyz` and `/metrics`.

use std::{io::IsTerminal, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
    serve::ListenerExt,
};
use prometheus_client::{
    encoding::text::encode,
    registry::{Metric, Registry},
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// What the text format of `prometheus-client` is called (OpenMetrics 1.0).
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const DEFAULT_FILTER: &str = "info";

/// Sends logs to stderr: `DOORBUSTER_LOG` filters (default `info`), `DOORBUSTER_LOG_FORMAT=json` for machines. Safe to call again.
pub fn init_logs() {
    let env = crate::config::Env::of_process();
    let wanted = env.get("DOORBUSTER_LOG").unwrap_or(DEFAULT_FILTER);
    let (filter, problem) = match EnvFilter::try_new(wanted) {
        Ok(filter) => (filter, None),
        Err(problem) => (EnvFilter::new(DEFAULT_FILTER), Some(problem)),
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Somebody else may have set up logging already (a test beside this one): theirs stays.
    let _ = if env.get("DOORBUSTER_LOG_FORMAT") == Some("json") {
        logs.json().flatten_event(true).try_init()
    } else {
        logs.with_ansi(std::io::stderr().is_terminal()).try_init()
    };
    if let Some(problem) = problem {
        tracing::warn!("environment variable DOORBUSTER_LOG is {wanted:?}: {problem}; using {DEFAULT_FILTER:?}");
    }
}

/// One label of a metric, with its name.
pub type Label<V> = [(&'static str, V); 1];

/// Makes metrics where they are registered.
pub trait Register {
    /// A new metric under this name; the registry's own handle shares its values.
    fn registered<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M;
}

impl Register for Registry {
    fn registered<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.register(name, help, metric.clone());
        metric
    }
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
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    // A connection that cannot be set to answer at once still answers.
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    let routes = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz).with_state(ready))
        .route("/metrics", get(render).with_state(metrics));
    tokio::spawn(async move {
        if let Err(problem) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
            tracing::error!(%problem, "the listener for health and metrics ended");
        }
    });
    Ok(address)
}

async fn readyz(State(ready): State<Readiness>) -> Response {
    match ready() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response(),
    }
}

async fn render(State(metrics): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &metrics) {
        Ok(()) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(problem) => (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics cannot be written: {problem}\n")).into_response(),
    }
}

/// Says where a service listens: one line in the log, and, where `DOORBUSTER_READY_FILE` names a file, the same as JSON
/// (`{"http":"127.0.0.1:1234",...}`), so that whoever asked for port 0 can find it. The file appears whole or not at all.
pub fn announce(env: &crate::config::Env, addresses: &[(&str, SocketAddr)]) -> std::io::Result<()> {
    let map: serde_json::Map<_, _> = addresses.iter().map(|(name, a)| ((*name).to_owned(), a.to_string().into())).collect();
    let json = serde_json::Value::Object(map).to_string();
    tracing::info!(listening = %json, "listening");
    let Some(file) = env.get("DOORBUSTER_READY_FILE") else { return Ok(()) };
    let unfinished = format!("{file}.{}", std::process::id());
    let written = std::fs::write(&unfinished, json).and_then(|()| std::fs::rename(&unfinished, file));
    written.map_err(|error| std::io::Error::new(error.kind(), format!("cannot write DOORBUSTER_READY_FILE={file}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use prometheus_client::metrics::counter::Counter;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut connection = TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    #[tokio::test]
    async fn the_second_listener_tells_life_readiness_and_metrics() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("purchases", "Purchases seen", counter.clone());
        counter.inc_by(3);
        let is_ready = Arc::new(AtomicBool::new(false));
        let asked = is_ready.clone();
        let ready: Readiness = Arc::new(move || if asked.load(SeqCst) { Ok(()) } else { Err("no Kafka".to_owned()) });
        let stop = CancellationToken::new();
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let address = serve_admin(free, Arc::new(registry), ready, stop.clone()).await.expect("a free port");

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let waiting = get(address, "/readyz").await;
        assert!(waiting.starts_with("HTTP/1.1 503") && waiting.contains("no Kafka"), "{waiting}");
        is_ready.store(true, SeqCst);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains(METRICS_TYPE) && metrics.contains("purchases_total 3"), "{metrics}");
        stop.cancel();
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
