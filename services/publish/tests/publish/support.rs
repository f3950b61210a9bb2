//! Names of their own on a broker, the topics, and what is in them.

use std::{ops::ControlFlow, time::Duration};

use devstack::{
    Server,
    kafka::{KafkaOptions, start},
};
use domain::{Request, RequestBody, VoucherId};
use events::Topics;
use infra::{
    config::Connections,
    kafka::{PartitionReader, Record, apply_topics, plan_topics},
};
use rand::{Rng, distr::Alphanumeric};

/// For one answer of a broker on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Names nobody else uses on the broker of `make test`, with the topics made (2 partitions).
pub(crate) fn connections() -> Connections {
    let endpoints = devstack::Endpoints::from_env().expect("servers to test on: run `make test`");
    with_topics(names(&endpoints.kafka))
}

/// The same on a broker of its own, which may be stopped, with short time-outs.
pub(crate) fn own_broker() -> (Server, Connections) {
    let broker = start(KafkaOptions::default()).expect("Kafka starts");
    let short = Connections {
        delivery_timeout: Duration::from_secs(2),
        transaction_timeout: Duration::from_secs(6),
        ..names(broker.endpoint())
    };
    (broker, with_topics(short))
}

/// There is nothing behind the other addresses.
pub(crate) fn names(kafka: &str) -> Connections {
    let prefix = format!("p{}", random_text(12));
    Connections {
        kafka: kafka.to_owned(),
        kafka_security: Default::default(),
        redis: String::new(),
        postgres: String::new(),
        registry: String::new(),
        topics: Topics::new(&format!("{prefix}-")),
        prefix,
        session_timeout: Duration::from_secs(6),
        delivery_timeout: Duration::from_secs(30),
        transaction_timeout: Duration::from_secs(30),
    }
}

pub(crate) fn with_topics(connections: Connections) -> Connections {
    let plan = plan_topics(&connections, Some(2)).expect("the broker answers");
    apply_topics(&connections, &plan).expect("the topics can be made");
    connections
}

/// Letters and digits that do not compress well.
pub(crate) fn random_text(length: usize) -> String {
    rand::rng().sample_iter(Alphanumeric).take(length).map(char::from).collect()
}

pub(crate) fn request(reason: &str) -> Request {
    Request {
        id: uuid::Uuid::new_v4(),
        voucher_id: VoucherId::parse("voucher-1").expect("a good id"),
        actor: "test".to_owned(),
        reason: Some(reason.to_owned()),
        body: RequestBody::VoucherPaused { expected_terms_version: 1 },
    }
}

/// All committed records of a partition, once nothing is undecided.
pub(crate) fn records(connections: &Connections, topic: &str, partition: i32) -> Vec<Record> {
    let mut reader = PartitionReader::open(connections, topic, partition).expect("a reader can be made");
    let ends = testkit::wait_for(PATIENCE, "a decided log", || reader.ends().ok().filter(|ends| ends.stable == ends.high));
    let mut found = Vec::new();
    reader
        .read(ends.start, ends.stable, &mut |record| {
            found.push(record);
            ControlFlow::Continue(())
        })
        .expect("the log can be read");
    found
}
