//! Headers of a dead letter, named as Kafka Streams names them (KIP-1034), so that tools for those topics understand ours.
//!
//! All values are UTF-8 text, numbers in decimal, as Kafka's string serializer writes them. The header for a stack trace is left
//! out: the cause of an unreadable record lies in its bytes, which are the dead letter's value.

use std::fmt::{self, Display};

use serde::Serialize;

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

/// Where a record stands: printed, and read, as `topic/partition/offset`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Place {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
}

impl Place {
    /// `None` for another text than is printed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(3, '/');
        let (offset, partition) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { topic: parts.next()?.to_owned(), partition, offset })
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.partition, self.offset)
    }
}

/// The text of a header. Of several with this name the last counts, as it does for Kafka's own clients: a record that was a dead letter
/// somewhere before brings the headers of that time along.
pub fn text<'a>(headers: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a str> {
    let found = headers.iter().rfind(|(found, _)| found == name);
    found.and_then(|(_, value)| std::str::from_utf8(value).ok())
}

/// Where the record of a dead letter was found; `None`: its headers do not say.
pub fn found_at(headers: &[(String, Vec<u8>)]) -> Option<Place> {
    let number = |name| text(headers, name)?.parse().ok();
    let topic = text(headers, TOPIC)?.to_owned();
    Some(Place { topic, partition: i32::try_from(number(PARTITION)?).ok()?, offset: number(OFFSET)? })
}

/// The headers of the dead letter for a record found at this place, in this order: exception, message, topic, partition, offset.
pub fn headers(topic: &str, partition: i32, offset: i64, error: impl Display) -> Vec<(String, Vec<u8>)> {
    let mut message = error.to_string();
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
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
    fn the_last_headers_say_where_a_record_was_found() {
        let mut twice = headers("elsewhere", 0, 1, "at first");
        twice.extend(headers("order-requests", 3, 17, "now"));
        let place = Place { topic: "order-requests".into(), partition: 3, offset: 17 };
        assert_eq!((found_at(&twice), text(&twice, MESSAGE)), (Some(place.clone()), Some("now")));
        assert_eq!(Place::parse(&place.to_string()), Some(place));
        assert_eq!(found_at(&twice[..2]), None);
        assert_eq!(["", "a/b", "a/1/b", "1/2"].map(Place::parse), [const { None }; 4]);
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
