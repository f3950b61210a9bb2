//! Where the servers of a stack are, as values and as environment variables.

use serde::{Deserialize, Serialize};

/// Variables that every Doorbuster program reads.
const KAFKA: &str = "DOORBUSTER_KAFKA";
const REDIS: &str = "DOORBUSTER_REDIS";
const POSTGRES: &str = "DOORBUSTER_POSTGRES";
const REGISTRY: &str = "DOORBUSTER_REGISTRY";

/// How clients reach the four servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// `127.0.0.1:PORT`
    pub kafka: String,
    /// `redis://127.0.0.1:PORT`
    pub redis: String,
    /// `postgresql://postgres@127.0.0.1:PORT/postgres`; no password is asked for.
    pub postgres: String,
    /// `http://127.0.0.1:PORT/apis/ccompat/v7`
    pub registry: String,
}

impl Endpoints {
    /// The environment variables that tell a child process.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            (KAFKA, self.kafka.clone()),
            (REDIS, self.redis.clone()),
            (POSTGRES, self.postgres.clone()),
            (REGISTRY, self.registry.clone()),
        ]
    }

    /// What this process' environment says; `None` unless all four are set.
    pub fn from_env() -> Option<Endpoints> {
        let read = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Endpoints { kafka: read(KAFKA)?, redis: read(REDIS)?, postgres: read(POSTGRES)?, registry: read(REGISTRY)? })
    }
}

/// The port in an endpoint of any of the four kinds.
pub(crate) fn port(endpoint: &str) -> Option<u16> {
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest).split('/').next()?;
    authority.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_endpoint_names_its_port() {
        let all = ["127.0.0.1:1", "redis://127.0.0.1:1", "postgresql://postgres@127.0.0.1:1/postgres", "http://127.0.0.1:1/apis"];
        assert!(all.iter().all(|endpoint| port(endpoint) == Some(1)));
    }
}
