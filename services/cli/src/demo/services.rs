//! The three services of the demo, as child processes of this binary.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use devstack::{
    Stack,
    process::{Program, Supervised},
};
use infra::config::{Connections, Env};
use rand::Rng;

/// For a service to be ready: it checks topics, schemas and tables first.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// For a service to end after SIGTERM: longer than its own deadline.
const END_DEADLINE: Duration = Duration::from_secs(40);

/// The services in the order of their starts. They end in the opposite order, so that nothing new comes in while the others finish.
const NAMES: [&str; 3] = ["orders", "compensation", "purchase"];

/// What only this run's processes know.
pub(super) struct Secrets {
    pub(super) jwt: String,
    order_key: String,
}

impl Secrets {
    /// Made at random; marked as a demo's, so that a service outside a demo refuses them.
    pub(super) fn made_up() -> Self {
        let hex = || rand::rng().random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Self { jwt: format!("{}{}", purchase::DEMO_SECRET_PREFIX, hex()), order_key: hex() }
    }
}

/// The stack's servers, under the usual names.
pub(super) fn connections(stack: &Stack) -> anyhow::Result<Connections> {
    Ok(Connections::from_env(&Env::of(stack.endpoints().env()))?)
}

/// Running services; killed when dropped.
pub(super) struct Services {
    running: Arc<Vec<Supervised>>,
    port: u16,
}

impl Services {
    /// Starts them and waits until each says that it is ready.
    pub(super) async fn start(stack: &Stack, secrets: &Secrets) -> anyhow::Result<Self> {
        let folder = stack.folder().join("services");
        // A fixed port, so that buyers find purchase again should it have to be started again.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).context("no port is free")?.port();
        let mut env: Vec<(String, String)> = stack.endpoints().env().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let more = [
            ("DOORBUSTER_DEMO", "1"),
            ("DOORBUSTER_JWT_SECRET", &secrets.jwt),
            ("DOORBUSTER_ORDER_KEY", &secrets.order_key),
            ("DOORBUSTER_PURCHASE_LISTEN", &format!("127.0.0.1:{port}")),
            ("DOORBUSTER_PURCHASE_ADMIN", "127.0.0.1:0"),
            ("DOORBUSTER_ORDERS_ADMIN", "127.0.0.1:0"),
            ("DOORBUSTER_COMPENSATION_ADMIN", "127.0.0.1:0"),
        ];
        env.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
        tokio::task::spawn_blocking(move || {
            let running = NAMES.map(|name| start_one(name, &folder, &env)).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            for service in &running {
                let ready_file = ready_file(&folder, service.name());
                service.wait_until(READY_DEADLINE, || is_ready(&ready_file))?;
            }
            Ok(Self { running: Arc::new(running), port })
        })
        .await?
    }

    /// Where buyers call.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Asks each to end, purchase first, and says which did not end with 0 or had to be started again meanwhile.
    pub(super) async fn end(&self) -> Result<(), String> {
        let running = Arc::clone(&self.running);
        let end = move || {
            let ends = running.iter().rev().map(|service| {
                let name = service.name();
                match service.terminate(END_DEADLINE) {
                    Ok(status) if status.success() && service.restarts() == 0 => Ok(()),
                    Ok(status) => Err(format!("{name} ended with {status} after {} restarts", service.restarts())),
                    Err(error) => Err(error.to_string()),
                }
            });
            let failed: Vec<String> = ends.filter_map(Result::err).collect();
            if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
        };
        tokio::task::spawn_blocking(end).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

fn ready_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.ready"))
}

fn start_one(name: &str, folder: &Path, env: &[(String, String)]) -> anyhow::Result<Supervised> {
    let mut program = Program::new(name, std::env::current_exe()?, folder);
    program.args = ["run", name].map(str::to_owned).to_vec();
    program.env = env.to_vec();
    program.env.push(("DOORBUSTER_READY_FILE".to_owned(), ready_file(folder, name).to_string_lossy().into_owned()));
    Ok(Supervised::start(program)?)
}

fn is_ready(ready_file: &Path) -> bool {
    let admin_port = || {
        let listening: serde_json::Value = serde_json::from_slice(&std::fs::read(ready_file).ok()?).ok()?;
        listening["admin"].as_str()?.rsplit_once(':')?.1.parse().ok()
    };
    admin_port().is_some_and(|port| devstack::http_get(port, "/readyz").is_ok_and(|(status, _)| status == 200))
}
