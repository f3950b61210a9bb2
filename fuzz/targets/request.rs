//! Any bytes as a record of `order-requests`: read or refused, and what was read is written and read again unchanged.
#![no_main]

use std::sync::LazyLock;

use domain::{LoggedRequest, State, Timestamp, decide};
use events::Codec;
use libfuzzer_sys::fuzz_target;

static CODEC: LazyLock<Codec> = LazyLock::new(|| {
    let codec = Codec::offline();
    // The same under another id and with one more field, so that records also take the way of schema resolution.
    let mut newer: serde_json::Value = serde_json::from_str(events::REQUEST_SCHEMA).expect("the schema is JSON");
    let field = serde_json::json!({"name": "trace", "type": ["null", "string"], "default": null});
    newer["fields"].as_array_mut().expect("a record has fields").push(field);
    codec.teach(11, &newer.to_string());
    codec
});

fuzz_target!(|bytes: &[u8]| {
    let read = CODEC.decode_request(bytes);
    if let Ok(request) = &read {
        let again = CODEC.encode_request(request).expect("what was read can be written");
        assert_eq!(CODEC.decode_request(&again).as_ref(), Ok(request));
    }
    // Whatever it is, a lane decides it without a panic, and the event can be written.
    let logged = LoggedRequest { partition: 0, offset: 0, appended_at: Timestamp(0), request: read.ok() };
    let mut facts = State::default();
    let event = decide(&facts, &logged);
    facts.evolve(&event);
    CODEC.encode_event(&event).expect("an event can be written");
});
