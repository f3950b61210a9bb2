//! Kafka: client settings, the check of the topics at start, and readers of one partition. Everything here blocks; never call it on a tokio worker.

use std::time::Duration;

use domain::Timestamp;
use rdkafka::{ClientConfig, error::KafkaError};

use crate::config::Connections;

/// Longest wait for one answer about metadata, offsets or settings.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the topics cannot be used, or the log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    /// A topic is missing or has settings under which it would lose or reorder records.
    #[error("topic {topic}: {problem}; {remedy}")]
    Topic { topic: String, problem: String, remedy: String },
    /// A wanted offset is no longer (or not yet) in the log.
    #[error("partition {partition} of {topic} holds offsets {start}..{end}, but {wanted} is needed")]
    OutOfRange { topic: String, partition: i32, start: i64, end: i64, wanted: i64 },
    #[error("partition {partition} of {topic}: no progress for {seconds} s at offset {offset}")]
    Stalled { topic: String, partition: i32, offset: i64, seconds: u64 },
}

/// Settings every client of this project shares.
pub fn client_config(connections: &Connections) -> ClientConfig {
    let _ = connections;
    todo!()
}

/// Checks that both topics exist with equal partition counts, delete policy, unlimited retention and LogAppendTime, and that
/// dead letters can be kept; gives the partition count. Refuses with what it found and what to do (`doorbuster topics apply`).
pub fn check_topics(connections: &Connections) -> Result<i32, LogError> {
    let _ = connections;
    todo!()
}

/// The ends of one partition at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// First offset still there.
    pub start: i64,
    /// The last stable offset: everything below is decided (committed or aborted).
    pub stable: i64,
    /// The high watermark: offset of the next record.
    pub high: i64,
}

/// One record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub timestamp: Timestamp,
    pub key: Option<Vec<u8>>,
    pub payload: Vec<u8>,
    pub headers: Vec<(String, Vec<u8>)>,
}

/// Reads one partition of a topic outside any group, committed records only.
pub struct PartitionReader {}

impl PartitionReader {
    pub fn open(connections: &Connections, topic: &str, partition: i32) -> Result<Self, LogError> {
        let _ = (connections, topic, partition);
        todo!()
    }

    pub fn ends(&self) -> Result<Ends, LogError> {
        todo!()
    }

    /// Reads from the next committed record at or after `from` up to (not including) offset `to`, calling `each` in order;
    /// ends by position, so markers and aborted records at the end do not confuse it. Fails with `Stalled` rather than hang.
    pub fn read(&mut self, from: i64, to: i64, each: &mut dyn FnMut(Record) -> std::ops::ControlFlow<()>) -> Result<(), LogError> {
        let _ = (from, to, each);
        todo!()
    }

    /// The last committed record below the stable end, looked for backwards in growing steps past markers and aborted records; `None`: there is none.
    pub fn last(&mut self) -> Result<Option<Record>, LogError> {
        todo!()
    }

    /// The first offset whose record was appended at or after `at`; `None`: there is none yet.
    pub fn offset_at(&self, at: Timestamp) -> Result<Option<i64>, LogError> {
        let _ = at;
        todo!()
    }
}
