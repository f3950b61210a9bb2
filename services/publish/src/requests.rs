//! The idempotent producer of requests.

use std::time::Duration;

use domain::Request;
use events::Codec;
use infra::config::Connections;

/// What became of a record. Three things, never two: an unknown outcome is not a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Acknowledged by all in-sync replicas.
    Persisted { partition: i32, offset: i64 },
    /// Certainly not in the log, and never will be.
    NotPersisted { reason: String },
    /// May be in the log, or may still get there.
    Unknown { reason: String },
}

/// Emits requests with `acks=all`, idempotent, to an explicit partition. Cheap to clone; clones share the producer, which is rebuilt after a fatal error.
#[derive(Clone)]
pub struct RequestProducer {}

impl RequestProducer {
    pub fn new(connections: &Connections, codec: Codec) -> Result<Self, rdkafka::error::KafkaError> {
        let _ = (connections, codec);
        todo!()
    }

    /// Hands the request over at once and gives a future of what became of it (within the delivery time-out). A full queue, or a record
    /// that is too large, is `NotPersisted` without delay. Dropping the future does not take the record back.
    pub fn send(&self, partition: i32, request: &Request) -> impl Future<Output = Delivery> + Send + 'static {
        let _ = (partition, request);
        async { todo!() }
    }

    /// Records handed over and not yet reported.
    pub fn in_flight(&self) -> usize {
        todo!()
    }

    /// Why records are not getting through at the moment, if so (a fatal error being mended, nothing acknowledged for too long).
    pub fn trouble(&self) -> Option<String> {
        todo!()
    }

    /// Waits until everything handed over is reported, at most `deadline`. Blocks; says how many are left.
    pub fn flush(&self, deadline: Duration) -> usize {
        let _ = deadline;
        todo!()
    }
}
