//! One test's own corner of the shared servers: topics, database, names.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use devstack::Endpoints;
use domain::{Money, OrderId, OrderKey, Request, RequestBody, Terms, Timestamp, UserId, VoucherId};
use events::{Codec, RegistryError, Topics};
use infra::config::{Connections, Env};
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::wait::block_on;

/// Partitions of a world's topics: more than one, so that a wrong partition shows, and few, so that topics are made quickly.
const PARTITIONS: i32 = 2;

/// Session time-out of a world's consumer groups: the shortest a broker allows by default (`group.min.session.timeout.ms`).
const SESSION_TIMEOUT_MS: u64 = 6_000;
/// Waiting for a delivery to be given up must not be what a test spends its time on.
const DELIVERY_TIMEOUT_MS: u64 = 10_000;
/// Long enough for a busy machine, short enough to wait for.
const TRANSACTION_TIMEOUT_MS: u64 = 10_000;

/// For the registry's answer to the first schemas it is given: it has just started, beside three other servers.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(60);

/// Database that worlds are copied from, migrated once.
const TEMPLATE: &str = "doorbuster_testkit_template";

/// Key of the advisory lock under which the template is made and copied, so that test processes do not disturb each other.
const TEMPLATE_LOCK: i64 = 0x646f_6f72;

/// Signs the tokens of all test buyers.
pub(crate) const JWT_SECRET: &str = "a secret for tests only, of no use to anybody else";

/// Key of all order ids in tests.
const ORDER_KEY: &[u8; 32] = b"a key for tests only, 32 bytes..";

/// A test's own topics, database and names on the servers that `make test` started. Dropping it drops the database.
pub struct World {
    connections: Connections,
    partitions: i32,
    database: String,
    maintenance: String,
    codec: Codec,
}

/// Says how a [`World`] differs from the usual one.
#[derive(Clone, Debug, Default)]
pub struct WorldBuilder {
    partitions: Option<i32>,
    kafka: Option<String>,
    redis: Option<String>,
    postgres: Option<String>,
    registry: Option<String>,
}

impl WorldBuilder {
    pub fn partitions(mut self, partitions: i32) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Another Kafka than the shared one, `host:port`.
    pub fn kafka(mut self, servers: &str) -> Self {
        self.kafka = Some(servers.to_owned());
        self
    }

    /// Another Redis than the shared one, `redis://host:port`.
    pub fn redis(mut self, url: &str) -> Self {
        self.redis = Some(url.to_owned());
        self
    }

    /// Another Postgres than the shared one, `postgresql://user@host:port/database`; worlds have databases of their own in it.
    pub fn postgres(mut self, url: &str) -> Self {
        self.postgres = Some(url.to_owned());
        self
    }

    /// Other servers than the shared ones, all four.
    pub fn servers(self, servers: &Endpoints) -> Self {
        let Endpoints { kafka, redis, postgres, registry } = servers.clone();
        Self { kafka: Some(kafka), redis: Some(redis), postgres: Some(postgres), registry: Some(registry), ..self }
    }

    pub fn build(self) -> World {
        World::build(self)
    }
}

impl World {
    /// Makes the topics (2 partitions), registers the schemas and makes a migrated database.
    ///
    /// Panics with the remedy where the servers are not there.
    pub fn new() -> Self {
        Self::builder().build()
    }

    pub fn builder() -> WorldBuilder {
        WorldBuilder::default()
    }

    fn build(options: WorldBuilder) -> Self {
        let shared = || Endpoints::from_env().expect("no servers to test on: run `make test`");
        let postgres = options.postgres.unwrap_or_else(|| shared().postgres);
        let name = format!("t{}", &Uuid::new_v4().simple().to_string()[..12]);
        let database = format!("doorbuster_{name}");
        let connections = Connections {
            kafka: options.kafka.unwrap_or_else(|| shared().kafka),
            kafka_security: Default::default(),
            redis: options.redis.unwrap_or_else(|| shared().redis),
            postgres: with_database(&postgres, &database),
            registry: options.registry.unwrap_or_else(|| shared().registry),
            topics: Topics::new(&format!("{name}-")),
            prefix: name,
            session_timeout: Duration::from_millis(SESSION_TIMEOUT_MS),
            delivery_timeout: Duration::from_millis(DELIVERY_TIMEOUT_MS),
            transaction_timeout: Duration::from_millis(TRANSACTION_TIMEOUT_MS),
        };
        let partitions = options.partitions.unwrap_or(PARTITIONS);
        let maintenance = with_database(&postgres, "postgres");
        std::thread::scope(|scope| {
            scope.spawn(|| make_topics(&connections, partitions));
            scope.spawn(|| block_on(make_database(&connections, &maintenance, &database)));
        });
        let codec = block_on(register(&connections));
        Self { connections, partitions, database, maintenance, codec }
    }

    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Partitions of its topics.
    pub fn partitions(&self) -> i32 {
        self.partitions
    }

    /// Knows the schemas, as registered.
    pub fn codec(&self) -> Codec {
        self.codec.clone()
    }

    /// The variables with which every service runs in this world. Listeners take free ports; add or overwrite what the test needs.
    pub fn env_vars(&self) -> Vec<(String, String)> {
        let c = &self.connections;
        [
            ("DOORBUSTER_KAFKA", c.kafka.as_str()),
            ("DOORBUSTER_REDIS", &c.redis),
            ("DOORBUSTER_POSTGRES", &c.postgres),
            ("DOORBUSTER_REGISTRY", &c.registry),
            ("DOORBUSTER_TOPIC_PREFIX", &format!("{}-", c.prefix)),
            ("DOORBUSTER_PREFIX", &c.prefix),
            ("DOORBUSTER_SESSION_TIMEOUT_MS", &SESSION_TIMEOUT_MS.to_string()),
            ("DOORBUSTER_DELIVERY_TIMEOUT_MS", &DELIVERY_TIMEOUT_MS.to_string()),
            ("DOORBUSTER_TRANSACTION_TIMEOUT_MS", &TRANSACTION_TIMEOUT_MS.to_string()),
            ("DOORBUSTER_PURCHASE_LISTEN", "127.0.0.1:0"),
            ("DOORBUSTER_PURCHASE_ADMIN", "127.0.0.1:0"),
            ("DOORBUSTER_ORDERS_ADMIN", "127.0.0.1:0"),
            ("DOORBUSTER_COMPENSATION_ADMIN", "127.0.0.1:0"),
            ("DOORBUSTER_JWT_SECRET", JWT_SECRET),
            ("DOORBUSTER_ORDER_KEY", &hex(ORDER_KEY)),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// The same as an [`Env`], for a service that runs inside the test.
    pub fn env(&self) -> Env {
        Env::of(self.env_vars())
    }

    /// A voucher id nobody else uses.
    pub fn voucher_id(&self) -> VoucherId {
        let id = format!("v-{}", &Uuid::new_v4().simple().to_string()[..12]);
        VoucherId::parse(&id).expect("letters, digits and a hyphen are allowed")
    }

    /// The order id that purchase gives this try.
    pub fn order_id(&self, voucher: &VoucherId, user: &str, idempotency_key: Option<&str>) -> OrderId {
        let key = OrderKey::new(ORDER_KEY).expect("the key is long enough");
        key.order_id(voucher, &user_id(user), idempotency_key)
    }

    /// Terms of a sale on `partition` that began a minute ago and goes on for an hour; change what the test is about.
    pub fn terms(&self, total: i64, per_user_limit: i64, partition: i32) -> Terms {
        let now = now();
        Terms {
            title: "A test's voucher".to_owned(),
            total,
            per_user_limit,
            begins_at: now.plus(-60_000),
            ends_at: now.plus(3_600_000),
            price: Money::new(1_000, "EUR"),
            payment_window_ms: None,
            partition,
        }
    }

    /// A client on this world's database, with its connection running in the background of the current tokio runtime.
    pub async fn postgres(&self) -> tokio_postgres::Client {
        connect(&self.connections.postgres).await
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failed test's world: prefix {}, database {}", self.connections.prefix, self.database);
            return;
        }
        block_on(async {
            let client = connect(&self.maintenance).await;
            let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database);
            client.batch_execute(&drop).await.expect("the world's database can be dropped");
        });
    }
}

/// The instant now, by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    Timestamp(i64::try_from(since.as_millis()).expect("the clock is before the year 292 million"))
}

/// A request about a voucher, as the CLI would make it.
pub fn voucher_request(voucher: &VoucherId, body: RequestBody) -> Request {
    Request { id: Uuid::new_v4(), voucher_id: voucher.clone(), actor: "test".to_owned(), reason: None, body }
}

/// An order as purchase would ask for it, requested now.
pub fn order_request(voucher: &VoucherId, order_id: OrderId, user: &str, quantity: i64) -> Request {
    let requested_at = now();
    voucher_request(voucher, RequestBody::OrderRequested { order_id, user_id: user_id(user), quantity, requested_at })
}

fn user_id(text: &str) -> UserId {
    UserId::from_log(text.to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The address with another database in it, and the same parameters.
pub fn with_database(url: &str, database: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    let parameters = url.find('?').map_or("", |at| &url[at..]);
    format!("{}/{database}{parameters}", &url[..end])
}

fn make_topics(connections: &Connections, partitions: i32) {
    let plan = infra::kafka::plan_topics(connections, Some(partitions)).expect("Kafka answers");
    infra::kafka::apply_topics(connections, &plan).expect("the world's topics can be made");
}

async fn register(connections: &Connections) -> Codec {
    let registry = connections.schema_registry().expect("the registry's address is good");
    let topics = &connections.topics;
    let deadline = Instant::now() + REGISTRY_PATIENCE;
    for (topic, schema) in [(&topics.requests, events::REQUEST_SCHEMA), (&topics.events, events::EVENT_SCHEMA)] {
        let subject = Topics::subject(topic);
        while let Err(error) = registry.register(&subject, schema).await {
            let slow = matches!(error, RegistryError::Unavailable { .. });
            assert!(slow && Instant::now() < deadline, "the schemas cannot be registered: {error}");
        }
    }
    Codec::connect(&registry, topics).await.expect("the schemas just registered are there")
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("Postgres accepts a connection");
    tokio::spawn(async move { drop(connection.await) });
    client
}

async fn make_database(connections: &Connections, maintenance: &str, database: &str) {
    /// The servers on which this process has looked.
    static TEMPLATE_CHECKED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let checked = || TEMPLATE_CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    let client = connect(maintenance).await;
    client.execute("SELECT pg_advisory_lock($1)", &[&TEMPLATE_LOCK]).await.expect("the template's lock can be had");
    if !checked().get_or_insert_default().contains(maintenance) {
        let there = client.query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&TEMPLATE]).await;
        if there.expect("databases can be listed").is_none() {
            client.batch_execute(&format!("CREATE DATABASE {TEMPLATE}")).await.expect("a database can be made");
        }
        let template = Connections { postgres: with_database(maintenance, TEMPLATE), ..connections.clone() };
        infra::postgres::migrate(&template).await.expect("the template can be migrated");
        checked().get_or_insert_default().insert(maintenance.to_owned());
    }
    let create = format!("CREATE DATABASE {database} TEMPLATE {TEMPLATE}");
    client.batch_execute(&create).await.expect("the template can be copied");
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_of_an_address_is_replaced_and_nothing_else() {
        let cases = [
            ("postgresql://u@h:1/old", "postgresql://u@h:1/new"),
            ("postgresql://u:p@h:1", "postgresql://u:p@h:1/new"),
            ("postgresql://u@h:1/old?connect_timeout=2", "postgresql://u@h:1/new?connect_timeout=2"),
        ];
        for (given, wanted) in cases {
            assert_eq!(with_database(given, "new"), wanted);
        }
    }
}
