//! An axum handler that checks a token as purchase does and says 202, in a process of its own.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    routing::post,
    serve::ListenerExt,
};
use devstack::process::{Program, Supervised};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Value, json};
use testkit::World;

const START_DEADLINE: Duration = Duration::from_secs(10);
/// As purchase has it.
const LEEWAY_SECONDS: u64 = 30;
const SECRET: &str = "DOORBUSTER_JWT_SECRET";
const READY_FILE: &str = "DOORBUSTER_READY_FILE";

/// The process, and where it listens.
pub(crate) struct Handler {
    // Killed with this value.
    _process: Supervised,
    pub(crate) address: SocketAddr,
}

impl Handler {
    /// Starts this very program as a handler, for tokens of this world.
    pub(crate) fn start(world: &World) -> Result<Self> {
        let folder = devstack::kept_logs().join(&world.connections().prefix);
        let ready = folder.join("handler.ready");
        let mut program = Program::new("handler", std::env::current_exe()?, &folder);
        program.args = vec!["handler".to_owned()];
        program.env = world.env_vars();
        program.env.push((READY_FILE.to_owned(), ready.to_string_lossy().into_owned()));
        let process = Supervised::start(program)?;
        let address = || std::fs::read_to_string(&ready).ok()?.parse().ok();
        process.wait_until(START_DEADLINE, || address().is_some())?;
        Ok(Self { _process: process, address: address().context("the handler's address is gone")? })
    }
}

/// The `main` of that process; never ends.
pub(crate) fn serve() -> Result<()> {
    let secret = std::env::var(SECRET).context(SECRET)?;
    let mut validation = Validation::new(Algorithm::HS256);
    validation.leeway = LEEWAY_SECONDS;
    validation.validate_nbf = true;
    validation.validate_aud = false;
    validation.set_required_spec_claims(&["exp", "sub"]);
    let verifier = Arc::new((DecodingKey::from_secret(secret.as_bytes())?, validation));
    let app = Router::new().route("/v1/vouchers/{voucher}/orders", post(purchase)).with_state(verifier);
    super::runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let ready = std::env::var(READY_FILE).context(READY_FILE)?;
        let unfinished = format!("{ready}.new");
        std::fs::write(&unfinished, listener.local_addr()?.to_string())?;
        std::fs::rename(&unfinished, Path::new(&ready))?;
        Ok(axum::serve(listener.tap_io(|stream| drop(stream.set_nodelay(true))), app).await?)
    })
}

async fn purchase(State(verifier): State<Arc<(DecodingKey, Validation)>>, headers: HeaderMap) -> (StatusCode, Json<Value>) {
    let token = headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok()?.strip_prefix("Bearer "));
    let claims = token.and_then(|token| jsonwebtoken::decode::<Value>(token, &verifier.0, &verifier.1).ok());
    match claims.as_ref().and_then(|token| token.claims["sub"].as_str()) {
        Some(_) => (StatusCode::ACCEPTED, Json(json!({"status": "pending"}))),
        None => (StatusCode::UNAUTHORIZED, Json(Value::Null)),
    }
}
