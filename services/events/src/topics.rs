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
///
/// `partitions` below 1 counts as 1.
pub fn partition_for(voucher: &VoucherId, partitions: i32) -> i32 {
    let positive = murmur2(voucher.as_str().as_bytes()) & 0x7fff_ffff;
    // Both operands are below 2^31, so the remainder is as well.
    (positive % partitions.max(1).unsigned_abs()) as i32
}

/// MurmurHash2 (32 bits, little-endian words) with the seed of Kafka's Java client, `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    // A key longer than 4 GiB cannot be: Kafka's lengths have 31 bits.
    let mut hash = SEED ^ key.len() as u32;
    let words = key.chunks_exact(4);
    let rest = words.remainder();
    for word in words {
        let mut k = word.iter().rev().fold(0, |k, byte| k << 8 | u32::from(*byte)).wrapping_mul(M);
        k = (k ^ k >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !rest.is_empty() {
        hash = (hash ^ rest.iter().rev().fold(0, |k, byte| k << 8 | u32::from(*byte))).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_other_clients() {
        // The vectors of Kafka's own UtilsTest, recomputed from the published MurmurHash2.
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
            ("", 275_646_681),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key:?}");
        }
    }

    #[test]
    fn a_voucher_lands_where_other_clients_would_put_it() {
        for (id, by_12, by_13, by_100) in
            [("summer-2026", 0, 1, 24), ("tickets:2026_v1.0-A", 9, 9, 81), ("abcd", 8, 11, 0), (&"x".repeat(64), 5, 11, 85)]
        {
            let id = VoucherId::parse(id).unwrap();
            assert_eq!([12, 13, 100].map(|n| partition_for(&id, n)), [by_12, by_13, by_100], "{id}");
            assert_eq!([1, 0, -7, i32::MIN].map(|n| partition_for(&id, n)), [0; 4], "{id}");
        }
    }
}
