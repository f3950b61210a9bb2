//! Headers of a dead letter, named as Kafka Streams names them (KIP-1034), so that tools for those topics understand ours.
//!
//! All values are UTF-8 text, numbers in decimal, as Kafka's string serializer writes them. The header for a stack trace is left
//! out: the cause of an unreadable record lies in its bytes, which are the dead letter's value.

use std::fmt::Display;

/// What kind of error it was, with its message.
pub const EXCEPTION: &str = "__streams.errors.exception";
/// The error's message.
pub const MESSAGE: &str = "__streams.errors.message";
/// The topic in which the record was found.
pub const TOPIC: &str = "__streams.errors.topic";
/// The partition in which the record was found.
pub const PARTITION: &str = "__streams.errors.partition";
/// The offset at which the record was found.
pub const OFFSET: &str = "__streams.errors.offset";

/// Longest message in a header, in bytes: long enough to tell the cause, short enough that a dead letter always fits where its record did,
/// given the allowance of [`MAX_SIZE`].
const MAX_MESSAGE: usize = 512;

/// Most that these headers add to a record, in bytes, names and framing included (a topic's name has at most 249).
pub const MAX_SIZE: usize = 2_048;

/// The headers of the dead letter for a record found at this place, in this order: exception, message, topic, partition, offset.
pub fn headers(topic: &str, partition: i32, offset: i64, error: impl Display) -> Vec<(String, Vec<u8>)> {
    let mut message = error.to_string();
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    [
        (EXCEPTION, format!("doorbuster.Unreadable: {message}")),
        (MESSAGE, message),
        (TOPIC, topic.to_owned()),
        (PARTITION, partition.to_string()),
        (OFFSET, offset.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.into_bytes()))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_place_and_the_cause() {
        let headers = headers("order-requests", 3, 9_007_199_254_740_993, "unreadable: no magic byte");
        let text: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), std::str::from_utf8(v).unwrap())).collect();
        assert_eq!(
            text,
            [
                ("__streams.errors.exception", "doorbuster.Unreadable: unreadable: no magic byte"),
                ("__streams.errors.message", "unreadable: no magic byte"),
                ("__streams.errors.topic", "order-requests"),
                ("__streams.errors.partition", "3"),
                ("__streams.errors.offset", "9007199254740993"),
            ]
        );
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let message = format!("a{}", "ä".repeat(10_000));
        let headers = headers(&"t".repeat(249), i32::MIN, i64::MIN, message);
        assert_eq!(headers[1].1.len(), 511);
        assert!(String::from_utf8(headers[1].1.clone()).is_ok());
        let size: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
        assert!(size <= MAX_SIZE, "{size}");
    }
}
