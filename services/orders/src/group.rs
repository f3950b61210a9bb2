//! The consumer group as the client library sees it: the settings, and the hook that hears of rebalances.

use std::{collections::VecDeque, time::Duration};

use infra::{
    config::Connections,
    kafka::{client_config, log_error, log_line},
};
use parking_lot::Mutex;
use rdkafka::{
    ClientConfig, ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    error::KafkaError,
    types::RDKafkaRespErr,
};

/// Between polls the group allows this much; the watchdog ends the process long before.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(120);

/// What the group decided, as the hook recorded it.
pub(crate) enum Rebalance {
    Assign(Vec<i32>),
    Revoke { partitions: Vec<i32>, is_lost: bool },
}

/// Records rebalances, and does nothing else.
#[derive(Default)]
pub(crate) struct Hook(Mutex<VecDeque<Rebalance>>);

impl Hook {
    /// The oldest rebalance that was not acted upon yet.
    pub(crate) fn next(&self) -> Option<Rebalance> {
        self.0.lock().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl ClientContext for Hook {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for Hook {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let partitions = partitions.elements().iter().map(|p| p.partition()).collect();
        let rebalance = match err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assign(partitions),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS => {
                Rebalance::Revoke { partitions, is_lost: consumer.assignment_lost() }
            }
            _ => Rebalance::Revoke { partitions, is_lost: true },
        };
        self.0.lock().push_back(rebalance);
    }
}

/// Settings of the group's consumer.
pub(crate) fn settings(connections: &Connections) -> ClientConfig {
    let mut config = client_config(connections);
    config
        .set("group.id", connections.group("orders"))
        .set("session.timeout.ms", connections.session_timeout.as_millis().to_string())
        .set(
            "heartbeat.interval.ms",
            (connections.session_timeout / 10).clamp(Duration::from_millis(200), Duration::from_secs(1)).as_millis().to_string(),
        )
        .set("partition.assignment.strategy", "cooperative-sticky")
        // Positions come from Postgres; the group's offsets are written by the lanes' transactions and never read.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("max.poll.interval.ms", MAX_POLL_INTERVAL.max(connections.session_timeout).as_millis().to_string())
        .set("fetch.wait.max.ms", "50")
        // The default of 1 s stalls a partition whose local queue was full for a moment.
        .set("fetch.queue.backoff.ms", "20")
        .set("queued.min.messages", "10000")
        .set("queued.max.messages.kbytes", "16384");
    config
}
