//! Servers that demand encryption and a password: the right settings get in, and each wrong one is named, without any password.

mod certificates;
mod kafka;
mod permissions;
mod postgres;
mod redis;
mod registry;

use certificates::{Authority, PASSWORD};
use infra::config::{Connections, Env};

/// For a broker to know what it was told, on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Settings of a service that has nothing but these servers.
fn connections(vars: &[(&str, &str)]) -> Result<Connections, String> {
    let nowhere = [
        ("DOORBUSTER_KAFKA", "127.0.0.1:1"),
        ("DOORBUSTER_REDIS", "redis://127.0.0.1:1"),
        ("DOORBUSTER_POSTGRES", "postgresql://127.0.0.1:1/x"),
        ("DOORBUSTER_REGISTRY", "http://127.0.0.1:1"),
    ];
    Connections::from_env(&Env::of(nowhere.iter().chain(vars).copied())).map_err(|error| error.to_string())
}

/// The error names all of `named` and shows no password.
#[track_caller]
fn assert_names(error: &str, named: &[&str]) {
    assert!(named.iter().all(|name| error.contains(name)), "{named:?} should be in: {error}");
    assert!(!error.contains(PASSWORD) && !error.contains("wrong-one"), "a password is shown: {error}");
}
