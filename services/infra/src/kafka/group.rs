//! A member of a consumer group whose rebalance hook only records.
//!
//! The hook runs inside `poll`. Acting only after the poll, whoever owns the member may take his time over a revoke while he goes on polling.

use std::{
    collections::VecDeque,
    ops::Deref,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext, Offset, TopicPartitionList,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    error::{KafkaError, KafkaResult},
    types::RDKafkaRespErr,
};

use super::{client_config, log_error, log_line};
use crate::config::Connections;

/// Between polls the group allows this much; the watchdog ends the process long before.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(120);

/// Longest wait for the answer to a question that only wakes. It takes half a millisecond; the group must go on being served.
const WAKE_LIMIT: Duration = Duration::from_millis(10);

/// What the group decided, as the hook recorded it.
pub enum Rebalance {
    Assign(Vec<i32>),
    /// `is_lost`: the partitions may be another member's by now.
    Revoke {
        partitions: Vec<i32>,
        is_lost: bool,
    },
}

/// Records rebalances, and does nothing else.
#[derive(Default)]
pub struct Hook(Mutex<VecDeque<Rebalance>>);

impl Hook {
    /// The oldest rebalance that was not acted upon yet.
    pub fn next(&self) -> Option<Rebalance> {
        self.0.lock().pop_front()
    }

    pub fn is_empty(&self) -> bool {
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

/// A member of a service's group, reading committed records of one topic. Offsets are committed by hand.
pub struct GroupConsumer {
    client: BaseConsumer<Hook>,
    topic: String,
}

impl GroupConsumer {
    /// Joins; the first assignment comes with a later poll. `reset`: `auto.offset.reset`, where to begin without an offset of the group.
    pub fn join(connections: &Connections, service: &str, topic: &str, reset: &str) -> KafkaResult<Self> {
        let session = connections.session_timeout;
        let heartbeat = (session / 10).clamp(Duration::from_millis(200), Duration::from_secs(1));
        let mut config = client_config(connections);
        config
            .set("group.id", connections.group(service))
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session.as_millis().to_string())
            .set("heartbeat.interval.ms", heartbeat.as_millis().to_string())
            .set("max.poll.interval.ms", MAX_POLL_INTERVAL.max(session).as_millis().to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", reset)
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "50")
            // The default of 1 s stalls a partition whose local queue was full for a moment.
            .set("fetch.queue.backoff.ms", "20")
            .set("queued.min.messages", "10000")
            .set("queued.max.messages.kbytes", "16384");
        let client = BaseConsumer::from_config_and_context(&config, Hook::default())?;
        client.subscribe(&[topic])?;
        Ok(Self { client, topic: topic.to_owned() })
    }

    /// Takes an assignment over; each partition is read from `at`.
    pub fn take(&self, partitions: &[i32], at: Offset) -> KafkaResult<()> {
        self.client.incremental_assign(&self.list(partitions, at))
    }

    /// Gives partitions back, none of them paused: the client would remember that, and read nothing when they come back.
    pub fn give_up(&self, partitions: &[i32]) -> KafkaResult<()> {
        let list = self.list(partitions, Offset::Invalid);
        self.client.resume(&list)?;
        self.client.incremental_unassign(&list)
    }

    /// Stops or goes on fetching these partitions.
    ///
    /// librdkafka (2.12.1) does not wake a broker's thread for a partition that is resumed: where nothing else was to be fetched from that broker,
    /// it looks again after up to a second (`rd_kafka_max_block_ms`). So the broker is asked something, which does wake it.
    pub fn pause(&self, partitions: &[i32], pause: bool) -> KafkaResult<()> {
        let list = self.list(partitions, Offset::Invalid);
        if pause {
            return self.client.pause(&list);
        }
        self.client.resume(&list)?;
        for partition in partitions {
            // The answer is of no interest, nor is that there was none.
            let _ = self.client.fetch_watermarks(&self.topic, *partition, WAKE_LIMIT);
        }
        Ok(())
    }

    /// Partitions of the topic, each with this offset.
    pub fn list(&self, partitions: &[i32], offset: Offset) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            // Fails only for an offset that no log has.
            let added = list.add_partition_offset(&self.topic, *partition, offset);
            debug_assert!(added.is_ok());
        }
        list
    }

    /// Begins to leave the group. With a hook that only records, the client never closes by itself: poll and act on what it records for as
    /// long as [`is_leaving`](Self::is_leaving), then [`end`](Self::end).
    pub fn leave(&self) {
        if let Err(error) = self.client.close_queue() {
            tracing::warn!(%error, "the consumer cannot be closed in order");
        }
    }

    pub fn is_leaving(&self, deadline: Instant) -> bool {
        !self.client.closed() && Instant::now() < deadline
    }

    /// Ends the client. One that has not left the group by now is leaked: dropping it would wait without limit.
    pub fn end(self) {
        if self.client.closed() {
            tracing::info!("left the group");
        } else {
            tracing::warn!("the group was not left in time; the partitions move after the session time-out");
            std::mem::forget(self.client);
        }
    }
}

impl Deref for GroupConsumer {
    type Target = BaseConsumer<Hook>;

    fn deref(&self) -> &BaseConsumer<Hook> {
        &self.client
    }
}
