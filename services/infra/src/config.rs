//! Configuration from environment variables, parsed once at start. Each variable stands in the table of `docs/CONFIGURATION.md`.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::{self, Display},
    net::SocketAddr,
    ops::RangeInclusive,
    str::FromStr,
    time::Duration,
};

use events::{Registry, RegistryError, Topics};

pub(crate) mod address;
mod kafka;

use address::take_parameter;
pub(crate) use kafka::check_authorities;
pub use kafka::{KafkaLogin, KafkaSecurity, Mechanism};

/// Longest topic prefix in bytes: a topic's name has at most 249, ours need up to 18.
const MAX_TOPIC_PREFIX: usize = 200;

/// Lists every variable there is; a test holds it against the code.
const TABLE: &str = include_str!("../../../docs/CONFIGURATION.md");

/// A variable that is missing or makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("environment variable {name} is not set: {purpose}")]
    Missing { name: &'static str, purpose: &'static str },
    #[error("environment variable {name} is {value:?}: {problem}")]
    Invalid { name: &'static str, value: String, problem: String },
}

impl ConfigError {
    pub(crate) fn invalid(name: &'static str, value: &str, problem: impl Into<String>) -> Self {
        Self::Invalid { name, value: value.to_owned(), problem: problem.into() }
    }
}

/// A text that no log and no error may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one who needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A set of environment variables.
#[derive(Clone, Default)]
pub struct Env(HashMap<String, String>);

/// The names only: values may be secrets.
impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().collect::<BTreeSet<_>>()).finish()
    }
}

impl Env {
    /// The variables of this process. Values that are no Unicode count as not set.
    pub fn of_process() -> Self {
        Self(std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect())
    }

    /// Given variables, for tests.
    pub fn of(vars: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        Self(vars.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }

    /// The set variables that nothing reads although they begin as ours do: mistyped, or of another version.
    pub fn unknown(&self) -> BTreeSet<&str> {
        let known = |name: &str| name == "DOORBUSTER_NATIVE" || TABLE.contains(&format!("`{name}`"));
        self.0.keys().map(String::as_str).filter(|name| name.starts_with("DOORBUSTER_") && !known(name)).collect()
    }

    /// The value, if set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// The value, or an error that says what the variable is for.
    pub fn required(&self, name: &'static str, purpose: &'static str) -> Result<String, ConfigError> {
        self.get(name).map(str::to_owned).ok_or(ConfigError::Missing { name, purpose })
    }

    /// A number within `bounds`.
    pub fn number<T>(&self, name: &'static str, default: T, bounds: RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.get(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if bounds.contains(&number) => Ok(number),
            _ => {
                let problem = format!("a number from {} to {} is needed", bounds.start(), bounds.end());
                Err(ConfigError::invalid(name, text, problem))
            }
        }
    }

    /// A duration written as whole milliseconds within `bounds`.
    pub fn millis(&self, name: &'static str, default: u64, bounds: RangeInclusive<u64>) -> Result<Duration, ConfigError> {
        self.number(name, default, bounds).map(Duration::from_millis)
    }

    /// An address to listen on.
    pub fn address(&self, name: &'static str, default: &'static str) -> Result<SocketAddr, ConfigError> {
        let value = self.get(name).unwrap_or(default);
        let problem = |_| ConfigError::invalid(name, value, format!("an address and a port are needed, as {default}"));
        value.parse().map_err(problem)
    }

    /// `true`/`1` or `false`/`0`.
    pub fn flag(&self, name: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.get(name) {
            None => Ok(default),
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(other) => Err(ConfigError::invalid(name, other, "true or false is needed")),
        }
    }
}

/// Where the servers are, and the names under which this deployment uses them.
#[derive(Clone)]
pub struct Connections {
    /// `DOORBUSTER_KAFKA`: bootstrap servers, `host:port,...`.
    pub kafka: String,
    /// `DOORBUSTER_KAFKA_SECURITY` and what belongs to it.
    pub kafka_security: KafkaSecurity,
    /// `DOORBUSTER_REDIS`: `redis://host:port`, or `rediss://user:password@host:port?ca=FILE`.
    pub redis: String,
    /// `DOORBUSTER_POSTGRES`: `postgresql://user@host:port/database`, with `?sslmode=require&sslrootcert=FILE` where it is encrypted.
    pub postgres: String,
    /// `DOORBUSTER_REGISTRY`: base address of the schema registry's REST API, `http://host:port`, or `https://user:password@host:port?ca=FILE`.
    pub registry: String,
    /// `DOORBUSTER_TOPIC_PREFIX` (default empty): before each topic's name.
    pub topics: Topics,
    /// `DOORBUSTER_PREFIX` (default `doorbuster`): begins the names of groups and transactional ids.
    pub prefix: String,
    /// `DOORBUSTER_SESSION_TIMEOUT_MS` (default 10000): of the consumer groups; a dead member's partitions move after it.
    pub session_timeout: Duration,
    /// `DOORBUSTER_DELIVERY_TIMEOUT_MS` (default 45000): after it a request that was not acknowledged is given up. The sweeper waits at least as long.
    pub delivery_timeout: Duration,
    /// `DOORBUSTER_TRANSACTION_TIMEOUT_MS` (default 30000): after it the broker aborts a lane's open transaction. An open one holds up every
    /// reader of committed events; below 10 s a change of leader ends transactions.
    pub transaction_timeout: Duration,
}

/// Without the addresses that may hold passwords.
impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("kafka", &self.kafka)
            .field("kafka_security", &self.kafka_security)
            .field("topics", &self.topics)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Connections {
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        Ok(Self {
            redis: env.required("DOORBUSTER_REDIS", "the address of Redis, as redis://host:port")?,
            postgres: env.required("DOORBUSTER_POSTGRES", "the address of Postgres, as postgresql://user@host:port/database")?,
            ..Self::of_log(env)?
        })
    }

    /// For who reads the log and nothing else: the addresses of Redis and Postgres are left empty.
    pub fn of_log(env: &Env) -> Result<Self, ConfigError> {
        let topic_prefix = env.get("DOORBUSTER_TOPIC_PREFIX").unwrap_or("");
        if topic_prefix.len() > MAX_TOPIC_PREFIX
            || !topic_prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            let problem = format!(
                "at most {MAX_TOPIC_PREFIX} letters, digits, dots, dashes and underscores are possible in a topic's name"
            );
            return Err(ConfigError::invalid("DOORBUSTER_TOPIC_PREFIX", topic_prefix, problem));
        }
        Ok(Self {
            kafka: env.required("DOORBUSTER_KAFKA", "the bootstrap servers of Kafka, as host:port,host:port")?,
            kafka_security: KafkaSecurity::from_env(env)?,
            redis: String::new(),
            postgres: String::new(),
            registry: env.required("DOORBUSTER_REGISTRY", "the base address of the schema registry's REST API")?,
            topics: Topics::new(topic_prefix),
            prefix: env.get("DOORBUSTER_PREFIX").unwrap_or("doorbuster").to_owned(),
            session_timeout: env.millis("DOORBUSTER_SESSION_TIMEOUT_MS", 10_000, 1_000..=300_000)?,
            delivery_timeout: env.millis("DOORBUSTER_DELIVERY_TIMEOUT_MS", 45_000, 1_000..=300_000)?,
            transaction_timeout: env.millis("DOORBUSTER_TRANSACTION_TIMEOUT_MS", 30_000, 2_000..=900_000)?,
        })
    }

    /// A client of the registry.
    pub fn schema_registry(&self) -> Result<Registry, RegistryError> {
        let (address, ca) = take_parameter(&self.registry, "ca");
        Registry::new(&address, ca.as_deref())
    }

    /// The consumer group (or the transactional ids' stem) of a service.
    pub fn group(&self, service: &str) -> String {
        format!("{}-{service}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Vec<(&'static str, &'static str)> {
        vec![
            ("DOORBUSTER_KAFKA", "k:9092"),
            ("DOORBUSTER_REDIS", "redis://r"),
            ("DOORBUSTER_POSTGRES", "postgresql://p/d"),
            ("DOORBUSTER_REGISTRY", "http://s"),
        ]
    }

    fn with(name: &'static str, value: &'static str) -> Result<Connections, ConfigError> {
        Connections::from_env(&Env::of(complete().into_iter().chain([(name, value)])))
    }

    #[test]
    fn what_is_not_set_has_its_default() -> Result<(), ConfigError> {
        let connections = Connections::from_env(&Env::of(complete()))?;
        assert_eq!(connections.topics.requests, "order-requests");
        assert_eq!(connections.group("orders"), "doorbuster-orders");
        assert_eq!(connections.delivery_timeout, Duration::from_secs(45));
        assert_eq!(connections.transaction_timeout, Duration::from_secs(30));
        Ok(())
    }

    #[test]
    fn variables_that_nothing_reads_are_found() {
        // In two parts: what stands in the code in one must be in the table.
        const MISTYPED: &str = concat!("DOORBUSTER_", "PURCHASE_ACK");
        let env = Env::of([(MISTYPED, "1"), ("DOORBUSTER_PURCHASE_ACK_MS", "1"), ("PATH", "/")]);
        assert_eq!(env.unknown().into_iter().collect::<Vec<_>>(), [MISTYPED]);
    }

    #[test]
    fn a_missing_address_is_named_with_its_purpose() {
        let without_redis = Env::of(complete().into_iter().filter(|(name, _)| *name != "DOORBUSTER_REDIS"));
        let message = Connections::from_env(&without_redis).map_err(|e| e.to_string()).err();
        assert!(message.is_some_and(|m| m.contains("DOORBUSTER_REDIS") && m.contains("redis://host:port")));
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        for (name, value) in [
            ("DOORBUSTER_SESSION_TIMEOUT_MS", "soon"),
            ("DOORBUSTER_DELIVERY_TIMEOUT_MS", "0"),
            ("DOORBUSTER_TRANSACTION_TIMEOUT_MS", "99999999"),
            ("DOORBUSTER_TOPIC_PREFIX", "two words"),
        ] {
            let message = with(name, value).map_err(|e| e.to_string()).err();
            assert!(message.as_ref().is_some_and(|m| m.contains(name) && m.contains(value)), "{message:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let env = Env::of(complete().into_iter().chain([("DOORBUSTER_REDIS", "redis://u:hunter2@r")]));
        let shown = format!("{env:?} {:?}", Connections::from_env(&env));
        assert!(shown.contains("DOORBUSTER_REDIS") && shown.contains("k:9092") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn an_empty_value_counts_as_not_set() {
        assert_eq!(with("DOORBUSTER_TOPIC_PREFIX", "").map(|c| c.topics.events), Ok("order-events".to_owned()));
    }
}
