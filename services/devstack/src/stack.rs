//! All four servers together.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use serde::{Deserialize, Serialize};

use crate::{
    Endpoints, Result, Server, StackError,
    folder::Folder,
    kafka::{self, KafkaOptions},
    logs, native,
    postgres::{self, PostgresOptions},
    redis::{self, RedisOptions},
    registry::{self, RegistryOptions},
    threads::{joined, side_by_side},
};

/// How a stack is to be run. The default is durable Postgres and everything else in the quickest way, in a temporary
/// folder, on free ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StackOptions {
    /// For data and logs, kept; `None`: a temporary folder that is removed at the end.
    pub dir: Option<PathBuf>,
    /// Redis writes an append-only file.
    pub redis_aof: bool,
    /// Further arguments of `redis-server`.
    pub redis_args: Vec<String>,
    /// Kafka's JVM compiles fully, for benchmarks.
    pub kafka_c2: bool,
    /// Further lines of Kafka's `server.properties`.
    pub kafka_properties: Vec<(String, String)>,
    /// Whether Postgres' commits wait for the disk.
    pub postgres_fsync: bool,
    /// Further settings of Postgres, as `name=value`.
    pub postgres_settings: Vec<String>,
    /// The registry keeps its schemas in the stack's Postgres (database `registry`) instead of in memory.
    pub registry_data: bool,
    pub ports: Ports,
}

impl Default for StackOptions {
    fn default() -> Self {
        Self {
            dir: None,
            redis_aof: false,
            redis_args: Vec::new(),
            kafka_c2: false,
            kafka_properties: Vec::new(),
            postgres_fsync: true,
            postgres_settings: Vec::new(),
            registry_data: false,
            ports: Ports::default(),
        }
    }
}

/// The servers' ports; 0 means any free one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    pub kafka: u16,
    pub redis: u16,
    pub postgres: u16,
    pub registry: u16,
}

/// Four running servers. Ends with this value, and in any case with this process.
#[derive(Debug)]
pub struct Stack {
    endpoints: Endpoints,
    /// Kafka, Redis, Postgres and, last, the registry.
    servers: Vec<Server>,
    // Last: the folder goes when the servers are gone.
    folder: StackFolder,
}

impl Stack {
    /// Starts the four servers side by side, and returns when each has answered.
    ///
    /// # Errors
    /// What kept each failed server from answering, with the end of its log; the others are stopped again.
    pub fn start(options: StackOptions) -> Result<Stack> {
        let folder = StackFolder(Folder::open(options.dir.as_deref())?);
        let ports = options.ports;
        let dir = |server: &str| Some(folder.0.path().join(server));
        let kafka = KafkaOptions {
            c2: options.kafka_c2,
            properties: options.kafka_properties,
            port: ports.kafka,
            dir: dir("kafka"),
            ..KafkaOptions::default()
        };
        let redis = RedisOptions {
            aof: options.redis_aof,
            args: options.redis_args,
            port: ports.redis,
            dir: dir("redis"),
            ..RedisOptions::default()
        };
        let postgres = PostgresOptions {
            fsync: options.postgres_fsync,
            settings: options.postgres_settings,
            port: ports.postgres,
            dir: dir("postgres"),
            ..PostgresOptions::default()
        };
        let registry = RegistryOptions { port: ports.registry, dir: dir("registry"), ..RegistryOptions::default() };
        let started = thread::scope(|scope| {
            let kafka = scope.spawn(|| kafka::start(kafka));
            let redis = scope.spawn(|| redis::start(redis));
            let postgres = scope.spawn(|| postgres::start(postgres));
            let (postgres, registry) = if options.registry_data {
                let postgres = joined(postgres);
                let endpoint = postgres.as_ref().ok().map(|server| server.endpoint().to_owned());
                let registry = endpoint.map(|endpoint| registry::start(RegistryOptions { postgres: Some(endpoint), ..registry }));
                (postgres, registry)
            } else {
                let registry = registry::start(registry);
                (joined(postgres), Some(registry))
            };
            [Some(joined(kafka)), Some(joined(redis)), Some(postgres), registry]
        });
        let servers = StackError::all(started.into_iter().flatten())?;
        let endpoint = |index: usize| servers[index].endpoint().to_owned();
        let endpoints = Endpoints { kafka: endpoint(0), redis: endpoint(1), postgres: endpoint(2), registry: endpoint(3) };
        Ok(Stack { endpoints, servers, folder })
    }

    /// How clients reach the servers.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// All four.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The folder with the servers' folders.
    pub fn folder(&self) -> &Path {
        self.folder.0.path()
    }

    /// Ends all servers: in good order if the folder is kept, at once if it is temporary.
    ///
    /// # Errors
    /// `Several` for servers that had to be killed after [`crate::STOP_DEADLINE`]. None runs afterwards in any case.
    pub fn stop(self) -> Result<()> {
        if !self.folder.0.is_kept() {
            return Ok(());
        }
        // The registry first: it may have its data in Postgres.
        let Some((registry, others)) = self.servers.split_last() else { return Ok(()) };
        let first = registry.stop();
        let stopped = side_by_side(others.iter().map(|server| || server.stop()));
        StackError::all(stopped.into_iter().chain([first])).map(drop)
    }

    /// Copies the servers' logs to a folder of this stack's name below [`crate::kept_logs`], and says where.
    ///
    /// A stack that is dropped by a panic does this by itself.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn keep_logs(&self) -> Result<PathBuf> {
        self.folder.keep_logs()
    }
}

/// The folder of a stack; removed after the servers are gone, its logs saved if a test failed.
#[derive(Debug)]
struct StackFolder(Folder);

impl StackFolder {
    fn keep_logs(&self) -> Result<PathBuf> {
        let from = self.0.path();
        let to = native::kept_logs().join(from.file_name().unwrap_or_default());
        logs::copy_all(from, &to).map_err(StackError::system(format!("copy the logs to {}", to.display())))?;
        Ok(to)
    }
}

impl Drop for StackFolder {
    fn drop(&mut self) {
        if thread::panicking() && !self.0.is_kept() && fs::exists(self.0.path()).unwrap_or(false) {
            match self.keep_logs() {
                Ok(to) => eprintln!("the servers' logs are in {}", to.display()),
                Err(error) => eprintln!("{error}"),
            }
        }
    }
}
