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
    kafka: Server,
    redis: Server,
    postgres: Server,
    registry: Server,
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
        let dir = folder.0.path();
        let postgres_options = PostgresOptions {
            fsync: options.postgres_fsync,
            settings: options.postgres_settings.clone(),
            port: options.ports.postgres,
            dir: Some(dir.join("postgres")),
            ..PostgresOptions::default()
        };
        let registry_options = |postgres| RegistryOptions {
            postgres,
            port: options.ports.registry,
            dir: Some(dir.join("registry")),
            ..RegistryOptions::default()
        };
        let kafka_options = KafkaOptions {
            c2: options.kafka_c2,
            properties: options.kafka_properties.clone(),
            port: options.ports.kafka,
            dir: Some(dir.join("kafka")),
            ..KafkaOptions::default()
        };
        let redis_options = RedisOptions {
            aof: options.redis_aof,
            args: options.redis_args.clone(),
            port: options.ports.redis,
            dir: Some(dir.join("redis")),
            ..RedisOptions::default()
        };
        let (kafka, redis, (postgres, registry)) = thread::scope(|scope| {
            let kafka = scope.spawn(|| kafka::start(kafka_options));
            let redis = scope.spawn(|| redis::start(redis_options));
            let both = if options.registry_data {
                let postgres = postgres::start(postgres_options);
                let registry =
                    postgres.as_ref().ok().map(|server| registry::start(registry_options(Some(server.endpoint().to_owned()))));
                (postgres, registry)
            } else {
                let registry = scope.spawn(|| registry::start(registry_options(None)));
                (postgres::start(postgres_options), Some(joined(registry)))
            };
            (joined(kafka), joined(redis), both)
        });
        match (kafka, redis, postgres, registry) {
            (Ok(kafka), Ok(redis), Ok(postgres), Some(Ok(registry))) => {
                let endpoints = Endpoints {
                    kafka: kafka.endpoint().to_owned(),
                    redis: redis.endpoint().to_owned(),
                    postgres: postgres.endpoint().to_owned(),
                    registry: registry.endpoint().to_owned(),
                };
                Ok(Stack { endpoints, kafka, redis, postgres, registry, folder })
            }
            (kafka, redis, postgres, registry) => {
                let all = [Some(kafka), Some(redis), Some(postgres), registry];
                Err(StackError::Several(all.into_iter().flatten().filter_map(Result::err).collect()))
            }
        }
    }

    /// How clients reach the servers.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The Kafka broker.
    pub fn kafka(&self) -> &Server {
        &self.kafka
    }

    /// The Redis.
    pub fn redis(&self) -> &Server {
        &self.redis
    }

    /// The Postgres.
    pub fn postgres(&self) -> &Server {
        &self.postgres
    }

    /// The schema registry.
    pub fn registry(&self) -> &Server {
        &self.registry
    }

    /// All four.
    pub fn servers(&self) -> [&Server; 4] {
        [&self.kafka, &self.redis, &self.postgres, &self.registry]
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
        let mut errors: Vec<StackError> = self.registry.stop().err().into_iter().collect();
        thread::scope(|scope| {
            let stops = [&self.kafka, &self.redis, &self.postgres].map(|server| scope.spawn(|| server.stop()));
            errors.extend(stops.into_iter().filter_map(|stop| joined(stop).err()));
        });
        if errors.is_empty() { Ok(()) } else { Err(StackError::Several(errors)) }
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

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
