//! Topic names and the partition of a voucher.

use domain::VoucherId;

/// Partitions of a topic where nobody says otherwise.
pub const DEFAULT_PARTITIONS: i32 = 12;

/// The names of the topics of one deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    pub requests: String,
    pub events: String,
    pub dead_letters: String,
}

impl Topics {
    /// The standard names with `prefix` before each; an empty prefix gives `order-requests`, `order-events`, `order-dead-letters`.
    pub fn new(prefix: &str) -> Self {
        Self {
            requests: format!("{prefix}order-requests"),
            events: format!("{prefix}order-events"),
            dead_letters: format!("{prefix}order-dead-letters"),
        }
    }

    /// The registry subject of a topic's values.
    pub fn subject(topic: &str) -> String {
        format!("{topic}-value")
    }
}

/// The partition that other Kafka clients' default partitioner computes for this key (murmur2): a voucher's pin where it was published without one.
pub fn partition_for(voucher: &VoucherId, partitions: i32) -> i32 {
    let _ = (voucher, partitions);
    todo!()
}
