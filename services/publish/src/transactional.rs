//! The transactional producer of one lane.

use infra::{config::Connections, postgres::OutRecord};
use rdkafka::consumer::ConsumerGroupMetadata;

/// How a transaction ended that did not commit.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// Aborted, nothing was published; the producer can be used again. Refused generations end here.
    #[error("transaction aborted: {0}")]
    Aborted(String),
    /// The producer is finished (fenced or fatal): drop it.
    #[error("producer finished: {0}")]
    Fatal(String),
    /// The commit may or may not have happened: the log must say.
    #[error("outcome of the commit unknown: {0}")]
    Unknown(String),
}

/// One partition's transactional producer. Blocks; lives on its lane's thread.
pub struct LaneProducer {}

impl LaneProducer {
    /// Builds the producer and runs `init_transactions`, which fences and aborts whoever used this partition's id before.
    pub fn start(connections: &Connections, partition: i32) -> Result<Self, TransactionError> {
        let _ = (connections, partition);
        todo!()
    }

    /// Publishes the records and the group's offset (`next_offset` of `order-requests`) in one transaction.
    pub fn publish(
        &self,
        records: &[OutRecord],
        next_offset: i64,
        metadata: &ConsumerGroupMetadata,
    ) -> Result<(), TransactionError> {
        let _ = (records, next_offset, metadata);
        todo!()
    }
}
