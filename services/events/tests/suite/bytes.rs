//! Any bytes at all: what was written is read back, and nothing else breaks the reader.

use std::sync::LazyLock;

use events::{Codec, DecodeError};
use proptest::prelude::*;

use crate::records;

/// The schema of events as a newer version might have it: the same, but for one more nullable field, so that records take the long way of
/// schema resolution.
fn newer(text: &str) -> String {
    let mut schema: serde_json::Value = serde_json::from_str(text).unwrap();
    let field = serde_json::json!({"name": "trace", "type": ["null", "string"], "default": null});
    schema["fields"].as_array_mut().unwrap().push(field);
    schema.to_string()
}

/// A codec that reads ids 1 and 2 the short way, 11 and 12 the long way, and knows 13 as something else altogether.
fn codec() -> Codec {
    static CODEC: LazyLock<Codec> = LazyLock::new(|| {
        let codec = Codec::offline();
        codec.teach(11, &newer(events::REQUEST_SCHEMA));
        codec.teach(12, &newer(events::EVENT_SCHEMA));
        codec.teach(13, r#""string""#);
        codec
    });
    CODEC.clone()
}

/// The same record as the newer version writes it: another id, and the new field, null, at the end.
fn as_newer(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[4] += 10;
    bytes.push(0);
    bytes
}

fn is_unreadable<T>(result: &Result<T, DecodeError>) -> bool {
    matches!(result, Err(DecodeError::Unreadable(_)))
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(request in records::request()) {
        let codec = codec();
        let bytes = codec.encode_request(&request).unwrap();
        prop_assert_eq!(codec.decode_request(&bytes), Ok(request.clone()));
        prop_assert_eq!(codec.decode_request(&as_newer(&bytes)), Ok(request));
    }

    #[test]
    fn an_event_is_read_as_it_was_written(event in records::event()) {
        let codec = codec();
        let bytes = codec.encode_event(&event).unwrap();
        prop_assert_eq!(codec.decode_event(&bytes, event.partition), Ok(event.clone()));
        prop_assert_eq!(codec.decode_event(&as_newer(&bytes), event.partition), Ok(event));
    }

    #[test]
    fn every_cut_and_every_addition_is_refused(event in records::event(), more in proptest::collection::vec(any::<u8>(), 1..9)) {
        let codec = codec();
        let bytes = codec.encode_event(&event).unwrap();
        for bytes in [bytes.clone(), as_newer(&bytes)] {
            for end in 0..bytes.len() {
                let cut = codec.decode_event(&bytes[..end], 0);
                prop_assert!(is_unreadable(&cut), "cut at {} of {}: {:?}", end, bytes.len(), cut);
            }
            prop_assert!(is_unreadable(&codec.decode_event(&[&bytes[..], &more].concat(), 0)));
        }
    }

    #[test]
    fn random_bytes_never_panic(id in 0u8..14, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let codec = codec();
        for bytes in [bytes.clone(), [&[0, 0, 0, 0, id], &bytes[..]].concat()] {
            let _ = codec.decode_request(&bytes);
            let _ = codec.decode_event(&bytes, 0);
        }
    }

    #[test]
    fn damaged_records_never_panic(
        request in records::request(),
        event in records::event(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let codec = codec();
        let (request, event) = (codec.encode_request(&request).unwrap(), codec.encode_event(&event).unwrap());
        for mut bytes in [request.clone(), as_newer(&request), event.clone(), as_newer(&event)] {
            for (at, byte) in &damage {
                // The head stays, so that the damage reaches the decoder.
                let at = 5 + at.index(bytes.len() - 5);
                bytes[at] = *byte;
            }
            let _ = codec.decode_request(&bytes);
            let _ = codec.decode_event(&bytes, 0);
        }
    }
}

/// One after the other into each place: a length or an index is hit for certain, not by luck.
#[test]
fn every_byte_replaced_by_extremes_never_panics() {
    let codec = codec();
    for (_, event) in records::events() {
        let bytes = codec.encode_event(&event).unwrap();
        for bytes in [bytes.clone(), as_newer(&bytes)] {
            for at in 0..bytes.len() {
                for value in [0x00, 0x01, 0x02, 0x7f, 0x80, 0xfe, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] = value;
                    let _ = codec.decode_event(&damaged, 0);
                    let _ = codec.decode_request(&damaged);
                }
            }
        }
    }
}

#[test]
fn a_hostile_length_is_refused_before_memory_is_taken_for_it() {
    let codec = codec();
    // The first field of a request is a string: its length is the first number of the datum.
    for (length, zigzag) in [
        ("1 MiB and a byte", &[0x82, 0x80, 0x80, 0x01][..]),
        ("2 GiB", &[0x80, 0x80, 0x80, 0x80, 0x10]),
        ("all of 63 bits", &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ("negative", &[0x01]),
    ] {
        for id in [1, 11] {
            let error = codec.decode_request(&[&[0, 0, 0, 0, id], zigzag].concat()).unwrap_err();
            let DecodeError::Unreadable(why) = error else { panic!("{length}: {error}") };
            let too_much = why.contains("1048576") || why.contains("Cannot convert");
            assert!(too_much, "{length}: {why}");
        }
    }
}

#[test]
fn what_has_no_head_of_ours_is_unreadable() {
    let codec = codec();
    for bytes in [&b""[..], &[0], &[0, 0, 0, 0], &[1, 0, 0, 0, 1], b"{\"kind\":\"OrderRequested\"}"] {
        assert!(is_unreadable(&codec.decode_request(bytes)), "{bytes:?}");
        assert!(is_unreadable(&codec.decode_event(bytes, 0)), "{bytes:?}");
    }
}

#[test]
fn a_record_of_another_topic_or_schema_is_unreadable_and_an_unknown_id_is_named() {
    let codec = codec();
    let request = codec.encode_request(&records::requests()[0].1).unwrap();
    let event = codec.encode_event(&records::events()[0].1).unwrap();
    for (request, event) in [(request.clone(), event.clone()), (as_newer(&request), as_newer(&event))] {
        assert!(is_unreadable(&codec.decode_event(&request, 0)));
        assert!(is_unreadable(&codec.decode_request(&event)));
    }
    assert!(is_unreadable(&codec.decode_event(&[0, 0, 0, 0, 13, 2, b'x'], 0)));
    let unknown = [0, 0, 0x0f, 0x42, 0x3f, 1];
    assert_eq!(codec.decode_request(&unknown), Err(DecodeError::UnknownSchema(999_999)));
    assert_eq!(codec.decode_event(&unknown, 0), Err(DecodeError::UnknownSchema(999_999)));
}

#[test]
fn clones_share_what_they_learn() {
    let (codec, event) = (Codec::offline(), &records::events()[0].1);
    let bytes = as_newer(&codec.encode_event(event).unwrap());
    let clone = codec.clone();
    assert_eq!(clone.decode_event(&bytes, records::PARTITION), Err(DecodeError::UnknownSchema(12)));
    codec.teach(12, &newer(events::EVENT_SCHEMA));
    assert_eq!(clone.decode_event(&bytes, records::PARTITION).as_ref(), Ok(event));
}
