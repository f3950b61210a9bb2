//! Kafka: client settings, the check of the topics at start, and readers of one partition. Everything here blocks; never call it on a tokio worker.

mod group;
mod probe;
mod reader;
mod refused;
mod search;
mod topics;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use domain::Timestamp;
use rdkafka::{
    ClientConfig, ClientContext, Message,
    config::RDKafkaLogLevel,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode},
    message::{BorrowedMessage, Headers},
};

pub use group::{GroupConsumer, Rebalance};
pub use probe::Probe;
pub use reader::PartitionReader;
pub use topics::{TopicPlan, TopicStep, apply_topics, check_topics, partition_count, plan_topics};

use crate::config::Connections;

/// Longest wait for one answer about metadata, offsets or settings.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest record of `order-requests` and `order-events` in bytes. Requests are some hundred bytes; the rest is room for titles and reasons.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// Largest record of `order-dead-letters` in bytes: any record of `order-requests` with the headers that say where it came from.
pub const MAX_DEAD_LETTER_BYTES: usize = 2 << 20;

/// Why the topics cannot be used, or the log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    /// No broker answered.
    #[error("no answer from Kafka at {servers} ({reason}): check {remedy}")]
    Unreachable { servers: String, reason: String, remedy: &'static str },
    /// A topic is missing or has settings under which it would lose or reorder records.
    #[error("topic {topic}: {problem}; {remedy}")]
    Topic { topic: String, problem: String, remedy: String },
    /// A wanted offset is no longer (or not yet) in the log.
    #[error("partition {partition} of {topic} holds offsets {start}..{end}, but {wanted} is needed{}", deleted(*wanted, *start))]
    OutOfRange { topic: String, partition: i32, start: i64, end: i64, wanted: i64 },
    #[error("partition {partition} of {topic}: no progress for {seconds} s at offset {offset}")]
    Stalled { topic: String, partition: i32, offset: i64, seconds: u64 },
}

/// Which records are missing, where it is the beginning that is.
fn deleted(wanted: i64, start: i64) -> String {
    if wanted < start { format!(": the records of offsets {wanted}..{start} were deleted") } else { String::new() }
}

/// Settings every client of this project shares.
pub fn client_config(connections: &Connections) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &connections.kafka)
        .set("client.id", &connections.prefix)
        // A mistyped name must be an error, not a new topic with the broker's defaults.
        .set("allow.auto.create.topics", "false")
        // The defaults (10 s between tries, 60 s for an answer, 30 s to connect) would make an outage longer than it was.
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000")
        .set("socket.timeout.ms", "10000")
        .set("socket.connection.setup.timeout.ms", "5000")
        .set("socket.keepalive.enable", "true")
        // New partitions are noticed at the next refresh; the default is 5 minutes.
        .set("topic.metadata.refresh.interval.ms", "30000")
        .set("security.protocol", connections.kafka_security.protocol());
    if let Some(ca) = &connections.kafka_security.ca {
        config.set("ssl.ca.location", ca);
    }
    if let Some(login) = &connections.kafka_security.login {
        config
            .set("sasl.mechanism", login.mechanism.as_str())
            .set("sasl.username", &login.user)
            .set("sasl.password", login.password.reveal());
    }
    // Asked for only where somebody reads it: the lines are made for each client.
    let is_read = tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG);
    config.set_log_level(if is_read { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Error });
    config
}

/// Sends a client's own log lines and errors to this process' log. librdkafka repeats itself on every try to connect, and who calls it
/// reports what failed; so only fatal errors and the loss of all brokers are loud.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLog;

impl ClientContext for ClientLog {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for ClientLog {}

/// What [`ClientLog`] does with a line, for contexts of one's own.
pub fn log_line(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(target: "librdkafka", facility, "{line}")
        }
        _ => tracing::debug!(target: "librdkafka", facility, "{line}"),
    }
}

/// What [`ClientLog`] does with an error, for contexts of one's own.
pub fn log_error(error: &KafkaError, reason: &str) {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::Fatal) => tracing::error!("Kafka client: {error}: {reason}"),
        Some(RDKafkaErrorCode::AllBrokersDown) => tracing::warn!("Kafka client: {error}: {reason}"),
        _ => tracing::debug!("Kafka client: {error}: {reason}"),
    }
}

/// Makes a call on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    tokio::task::spawn_blocking(call).await.unwrap_or(Err(LogError::Kafka(KafkaError::Canceled)))
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

/// Stands for the headers of a record that could not be read: see [`Record::of`].
pub const UNREADABLE_HEADERS: &str = "doorbuster.unreadable.headers";

impl Record {
    /// The record in a message. The library panics at a header whose name is no UTF-8, and anybody can write one: such a header and those behind
    /// it are left out, with [`UNREADABLE_HEADERS`] in their place, so that one record cannot stop a partition for good.
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let mut headers = Vec::new();
        if let Some(found) = message.headers() {
            let owned = found.iter().map(|h| (h.key.to_owned(), h.value.unwrap_or_default().to_vec()));
            // What was pushed before a panic is whole.
            if catch_unwind(AssertUnwindSafe(|| headers.extend(owned))).is_err() {
                headers.push((UNREADABLE_HEADERS.to_owned(), Vec::new()));
            }
        }
        Self {
            partition: message.partition(),
            offset: message.offset(),
            timestamp: Timestamp(message.timestamp().to_millis().unwrap_or(0)),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().unwrap_or_default().to_vec(),
            headers,
        }
    }
}
