//! The servers of a run, each behind a proxy, and a world with its services on them.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use devstack::{
    Disk, Endpoints, Server, joined,
    kafka::{self, ClusterOptions},
    postgres::{self, PostgresOptions},
    redis::{self, RedisOptions},
    registry::{self, RegistryOptions},
};
use testkit::{Mode, Proxy, World, block_on, with_database};
use tokio_postgres::NoTls;

use crate::{fault::Need, fleet::Fleet};

/// As many as can lose one and still acknowledge.
pub(crate) const BROKERS: usize = 3;
/// For one command of ours to Redis. Nobody else is waited for longer.
const REDIS_TIMEOUT: Duration = Duration::from_secs(5);
/// For one statement of ours to Postgres: it may have to wait for every lane's transaction.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// For a server that is running to answer, where it was paused, busy or restarted a moment ago.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of the disk under Postgres, in memory: several times what an epoch leaves there.
const DISK: u64 = 1 << 30;
/// So that Postgres does not keep much of that for its log, and soon needs new space for it.
const WAL: [&str; 2] = ["min_wal_size=32MB", "max_wal_size=128MB"];
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// A server and the proxy through which the services reach it.
pub struct Proxied {
    pub server: Server,
    pub proxy: Proxy,
}

impl Proxied {
    fn new(server: Server) -> Result<Self> {
        let proxy = Proxy::to(server.port())?;
        Ok(Self { server, proxy })
    }

    /// As the services know it.
    fn endpoint(&self) -> String {
        let [own, proxy] = [self.server.port(), self.proxy.port()].map(|port| format!("127.0.0.1:{port}"));
        self.server.endpoint().replacen(&own, &proxy, 1)
    }
}

/// All servers of a run: three brokers (3 copies, 2 must acknowledge), a Redis with an append-only file, a Postgres, a registry that has its
/// schemas in memory.
pub struct Servers {
    pub kafka: Vec<Proxied>,
    pub redis: Proxied,
    pub postgres: Proxied,
    pub registry: Proxied,
    /// Under Postgres, which ends before it; an error where this process may mount none.
    pub(crate) disk: Result<Disk>,
}

impl Servers {
    /// Starts all of them side by side, on free ports, in temporary folders.
    pub fn start() -> Result<Self> {
        let proxies: Vec<Proxy> = (0..BROKERS).map(|_| Proxy::start()).collect::<Result<_, _>>()?;
        let cluster = ClusterOptions {
            brokers: BROKERS,
            advertised: Some(proxies.iter().map(Proxy::port).collect()),
            ..ClusterOptions::default()
        };
        let redis_options = RedisOptions { aof: true, ..RedisOptions::default() };
        let disk = Disk::new(DISK).map_err(anyhow::Error::from);
        let dir = disk.as_ref().ok().map(|disk| disk.path().to_owned());
        let settings = WAL.map(str::to_owned).to_vec();
        let postgres_options = PostgresOptions { fsync: false, dir, settings, ..PostgresOptions::default() };
        let (brokers, redis, postgres, registry) = thread::scope(|scope| {
            let brokers = scope.spawn(|| kafka::start_cluster(cluster));
            let redis = scope.spawn(|| redis::start(redis_options));
            let registry = scope.spawn(|| registry::start(RegistryOptions::default()));
            let postgres = postgres::start(postgres_options);
            (joined(brokers), joined(redis), postgres, joined(registry))
        });
        let behind = |(server, proxy): (Server, Proxy)| {
            proxy.set_target(server.port());
            Proxied { server, proxy }
        };
        Ok(Self {
            kafka: brokers?.into_iter().zip(proxies).map(behind).collect(),
            redis: Proxied::new(redis?)?,
            postgres: Proxied::new(postgres?)?,
            registry: Proxied::new(registry?)?,
            disk,
        })
    }

    /// As the services know them.
    pub fn endpoints(&self) -> Endpoints {
        Endpoints {
            kafka: self.kafka.iter().map(Proxied::endpoint).collect::<Vec<_>>().join(","),
            redis: self.redis.endpoint(),
            postgres: self.postgres.endpoint(),
            registry: self.registry.endpoint(),
        }
    }

    /// Every one of them, with its name.
    pub fn all(&self) -> impl Iterator<Item = (String, &Proxied)> {
        let brokers = self.kafka.iter().zip(1..).map(|(broker, number)| (format!("broker {number}"), broker));
        let others = [("Redis", &self.redis), ("Postgres", &self.postgres), ("the registry", &self.registry)];
        brokers.chain(others.map(|(name, proxied)| (name.to_owned(), proxied)))
    }

    /// Says what is not as it is without faults: a proxy that is not open, a server that does not answer.
    ///
    /// # Errors
    /// The first that is found; a server is asked for up to a minute.
    pub fn check(&self) -> Result<()> {
        for (name, proxied) in self.all() {
            ensure!(proxied.proxy.mode() == Mode::Open, "the proxy of {name} is {:?}", proxied.proxy.mode());
        }
        self.wait_for_brokers()?;
        until("Redis to answer", || self.redis().and_then(|mut c| Ok(::redis::cmd("PING").exec(&mut c)?)).is_ok())?;
        until("Postgres to answer", || self.sql("postgres", &["SELECT 1"]).is_ok())?;
        let port = self.registry.server.port();
        let subjects = || devstack::http_get(port, "/apis/ccompat/v7/subjects").is_ok_and(|(status, _)| status == 200);
        until("the registry to answer", subjects)
    }

    /// Waits until each broker knows all of them.
    pub(crate) fn wait_for_brokers(&self) -> Result<()> {
        let knows_all = |broker: &Proxied| kafka::cluster(broker.server.port()).is_ok_and(|known| known.brokers.len() == BROKERS);
        until("all brokers to know each other", || self.kafka.iter().all(knows_all))
    }

    /// A connection to Redis past its proxy.
    pub fn redis(&self) -> Result<::redis::Connection> {
        redis_at(&self.redis.server)
    }

    /// Runs each text of statements in a database of Postgres, past its proxy; a text of several is one transaction.
    pub fn sql(&self, database: &str, texts: &[&str]) -> Result<()> {
        let url = in_database(self.postgres.server.endpoint(), database);
        let run = async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            let connection = tokio::spawn(connection);
            for text in texts {
                client.batch_execute(text).await.with_context(|| format!("Postgres refuses: {text}"))?;
            }
            drop(client);
            Ok(connection.await??)
        };
        block_on(async { tokio::time::timeout(STATEMENT_TIMEOUT, run).await })?
    }
}

/// Servers, a world on them, and the services in it.
pub struct Site {
    // In the order of dropping: the services end before their database, and that before Postgres.
    pub fleet: Fleet,
    pub world: World,
    pub servers: Servers,
}

impl Site {
    /// Makes a world on the servers and starts its services; they may not be ready yet. `other`: the binary of another build, of which
    /// every second process of each kind is.
    pub fn new(servers: Servers, other: Option<PathBuf>) -> Self {
        let world = new_world(&servers);
        Self { fleet: Fleet::start(&world, other), world, servers }
    }

    /// Why a kind of fault with this need is not possible here.
    pub(crate) fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Disk => self.servers.disk.as_ref().err().map(|error| format!("{error:#}")),
            Need::Clocks => testkit::wrong_clock(0).err(),
            Need::OtherBuild if self.fleet.other.is_some() => None,
            Need::OtherBuild => Some("there is no other build (OTHER=FOLDER)".to_owned()),
        }
    }

    /// A fresh world with fresh services on the same servers: new topics, new database, an empty Redis. Everything of the old one ends.
    pub fn next_world(&mut self) -> Result<()> {
        let other = std::mem::take(&mut self.fleet).other;
        let mut redis = self.servers.redis()?;
        ::redis::cmd("FLUSHALL").exec(&mut redis)?;
        self.world = new_world(&self.servers);
        self.fleet = Fleet::start(&self.world, other);
        Ok(())
    }

    /// Runs statements in the world's database, past the proxy: see [`Servers::sql`].
    pub fn sql(&self, texts: &[&str]) -> Result<()> {
        self.servers.sql(self.database(), texts)
    }

    /// The address of the world's database, past the proxy.
    pub(crate) fn own_postgres(&self) -> String {
        in_database(self.servers.postgres.server.endpoint(), self.database())
    }

    fn database(&self) -> &str {
        let url = &self.world.connections().postgres;
        url.rsplit_once('/').map_or("", |(_, rest)| rest.split('?').next().unwrap_or(rest))
    }

    /// Says what is not as it is without faults: a server, a proxy, or a process that is not kept running.
    ///
    /// # Errors
    /// The first that is found.
    pub fn check(&self) -> Result<()> {
        self.servers.check()?;
        self.fleet.check()
    }
}

fn new_world(servers: &Servers) -> World {
    World::builder().servers(&servers.endpoints()).build()
}

/// A connection to a Redis.
pub(crate) fn redis_at(server: &Server) -> Result<::redis::Connection> {
    let connection = ::redis::Client::open(server.endpoint())?.get_connection_with_timeout(REDIS_TIMEOUT)?;
    connection.set_read_timeout(Some(REDIS_TIMEOUT))?;
    connection.set_write_timeout(Some(REDIS_TIMEOUT))?;
    Ok(connection)
}

/// Waits for a condition; an error names what it was.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !condition() {
        ensure!(begun.elapsed() < ANSWER_DEADLINE, "gave up after {ANSWER_DEADLINE:?} waiting for {what}");
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn in_database(endpoint: &str, database: &str) -> String {
    format!("{}?connect_timeout=5", with_database(endpoint, database))
}
