//! What the Kafka tests share: names of their own on the shared broker, topics with any settings, and a writer of transactions.

use std::time::Duration;

use events::Topics;
use futures::executor::block_on;
use infra::{
    config::Connections,
    kafka::{ClientLog, client_config},
};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    config::FromClientConfigAndContext,
    producer::{BaseProducer, BaseRecord, Producer},
};
use uuid::Uuid;

/// For one call to a broker on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Names nobody else uses on the broker of `make test`.
pub(crate) fn connections() -> Connections {
    let endpoints = devstack::Endpoints::from_env().expect("servers to test on: run `make test`");
    connections_to(&endpoints.kafka)
}

/// The same on any broker. There is nothing behind the other addresses.
pub(crate) fn connections_to(kafka: &str) -> Connections {
    let prefix = format!("k{}", Uuid::new_v4().simple());
    Connections {
        kafka: kafka.to_owned(),
        kafka_security: Default::default(),
        redis: String::new(),
        postgres: String::new(),
        registry: String::new(),
        topics: Topics::new(&format!("{prefix}-")),
        prefix,
        session_timeout: Duration::from_secs(6),
        delivery_timeout: Duration::from_secs(10),
        transaction_timeout: Duration::from_secs(10),
    }
}

pub(crate) fn admin(connections: &Connections) -> AdminClient<ClientLog> {
    AdminClient::from_config_and_context(&client_config(connections), ClientLog).expect("a client can be made")
}

/// Makes a topic with one replica and these settings.
pub(crate) fn make_topic(connections: &Connections, name: &str, partitions: i32, settings: &[(&str, &str)]) {
    let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
    for result in block_on(admin(connections).create_topics([&new], &AdminOptions::new())).expect("the broker answers") {
        result.expect("the topic can be made");
    }
}

/// Deletes the records of partition 0 below `offset`.
pub(crate) fn delete_records(connections: &Connections, topic: &str, offset: i64) {
    let mut below = TopicPartitionList::new();
    below.add_partition_offset(topic, 0, Offset::Offset(offset)).expect("offsets are not negative");
    block_on(admin(connections).delete_records(&below, &AdminOptions::new())).expect("the broker deletes records");
}

/// Writes to partition 0 of a topic in transactions.
pub(crate) struct Writer {
    producer: BaseProducer,
    topic: String,
}

impl Writer {
    pub(crate) fn new(connections: &Connections, topic: &str) -> Self {
        let mut config: ClientConfig = client_config(connections);
        config.set("transactional.id", format!("w{}", Uuid::new_v4())).set("retry.backoff.ms", "1").set("linger.ms", "0");
        let producer: BaseProducer = config.create().expect("a producer can be made");
        producer.init_transactions(PATIENCE).expect("transactions can be had");
        Self { producer, topic: topic.to_owned() }
    }

    /// Begins a transaction and has these records acknowledged in it.
    pub(crate) fn open(&self, payloads: &[&str]) {
        self.producer.begin_transaction().expect("a transaction begins");
        for payload in payloads {
            self.producer
                .send(BaseRecord::to(&self.topic).partition(0).key("k").payload(*payload))
                .map_err(|(e, _)| e)
                .expect("room");
        }
        self.producer.flush(PATIENCE).expect("the records are acknowledged");
    }

    pub(crate) fn commit(&self, payloads: &[&str]) {
        self.open(payloads);
        self.producer.commit_transaction(PATIENCE).expect("it commits");
    }

    pub(crate) fn abort(&self, payloads: &[&str]) {
        self.open(payloads);
        self.abort_open();
    }

    pub(crate) fn abort_open(&self) {
        self.producer.abort_transaction(PATIENCE).expect("it aborts");
    }
}
