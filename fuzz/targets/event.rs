//! Any bytes as a record of `order-events`: read or refused, and what was read is written and read again unchanged.
#![no_main]

use std::sync::LazyLock;

use domain::State;
use events::Codec;
use libfuzzer_sys::fuzz_target;

static CODEC: LazyLock<Codec> = LazyLock::new(|| {
    let codec = Codec::offline();
    let mut newer: serde_json::Value = serde_json::from_str(events::EVENT_SCHEMA).expect("the schema is JSON");
    let field = serde_json::json!({"name": "trace", "type": ["null", "string"], "default": null});
    newer["fields"].as_array_mut().expect("a record has fields").push(field);
    codec.teach(12, &newer.to_string());
    codec
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(event) = CODEC.decode_event(bytes, 0) else { return };
    let again = CODEC.encode_event(&event).expect("what was read can be written");
    assert_eq!(CODEC.decode_event(&again, 0).as_ref(), Ok(&event));
    State::default().evolve(&event);
});
