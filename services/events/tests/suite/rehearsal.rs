//! A rehearsal of growing: the next version of the event schema, made here from today's text, and this version's code read each other.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::types::Value as Avro;
use apache_avro::writer::datum::GenericDatumWriter;
use domain::{Event, EventBody};
use events::{Codec, DecodeError, EVENT_SCHEMA, REQUEST_SCHEMA};
use serde_json::{Value, json};

use crate::{compatibility, records};

/// The id of the next version's schema.
const ID: u32 = 7;

/// Today's schema with whatever `change` does to it.
fn changed(text: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut schema = serde_json::from_str(text).unwrap();
    change(&mut schema);
    schema.to_string()
}

fn field<'a>(record: &'a mut Value, name: &str) -> &'a mut Value {
    record["fields"].as_array_mut().unwrap().iter_mut().find(|field| field["name"] == name).unwrap()
}

/// The record of a body, which is the second branch of its nullable field.
fn body<'a>(schema: &'a mut Value, name: &str) -> &'a mut Value {
    &mut field(schema, name)["type"][1]
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}

/// A new kind with a body of its own, a new word for an old reason, and new optional fields: on top (an enum, which a careless
/// reader cannot skip), within an old body, and within money.
fn next() -> String {
    changed(EVENT_SCHEMA, |schema| {
        push(&mut field(schema, "kind")["type"]["symbols"], json!("OrderRefunded"));
        let how = json!({"type": "enum", "name": "RefundedHow", "symbols": ["UNKNOWN", "CARD", "VOUCHER"], "default": "UNKNOWN"});
        let refunded = json!({"type": "record", "name": "OrderRefunded", "fields": [
            {"name": "order_id", "type": "string"},
            {"name": "how", "type": how},
            {"name": "was", "type": "OrderStatus"},
            {"name": "amount", "type": ["null", "Money"], "default": null},
        ]});
        push(&mut schema["fields"], json!({"name": "order_refunded", "type": ["null", refunded], "default": null}));
        push(&mut schema["fields"], json!({"name": "again", "type": ["null", "RefundedHow"], "default": null}));
        let rejected = body(schema, "order_rejected");
        push(&mut field(rejected, "reason")["type"]["symbols"], json!("BANNED"));
        let channel = json!({"type": "enum", "name": "Channel", "symbols": ["UNKNOWN", "WEB"], "default": "UNKNOWN"});
        push(
            &mut body(schema, "order_confirmed")["fields"],
            json!({"name": "channel", "type": ["null", channel], "default": null}),
        );
        push(
            &mut body(schema, "order_confirmed")["fields"],
            json!({"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}),
        );
        let opened = body(schema, "voucher_opened");
        push(
            &mut field(opened, "price")["type"]["fields"],
            json!({"name": "tax_minor", "type": ["null", "long"], "default": null}),
        );
    })
}

/// A record read as the next version's code would read it.
fn read_by_next(datum: &[u8]) -> Avro {
    let (today, next) = (Schema::parse_str(EVENT_SCHEMA).unwrap(), Schema::parse_str(&next()).unwrap());
    let reader = GenericDatumReader::builder(&today).reader_schema(&next).build().unwrap();
    reader.read_value(&mut &datum[..]).unwrap()
}

fn write_by_next(value: Avro) -> Vec<u8> {
    let next = Schema::parse_str(&next()).unwrap();
    let datum = GenericDatumWriter::builder(&next).build().unwrap().write_value_to_vec(value).unwrap();
    [&[0], &ID.to_be_bytes()[..], &datum].concat()
}

fn set(record: &mut Avro, name: &str, to: Avro) {
    let Avro::Record(fields) = record else { panic!("{record:?} is no record") };
    fields.iter_mut().find(|(field, _)| field == name).unwrap().1 = to;
}

fn get<'a>(record: &'a mut Avro, name: &str) -> &'a mut Avro {
    let Avro::Record(fields) = record else { panic!("{record:?} is no record") };
    let value = &mut fields.iter_mut().find(|(field, _)| field == name).unwrap().1;
    match value {
        Avro::Union(_, inner) => inner,
        plain => plain,
    }
}

fn some(value: Avro) -> Avro {
    Avro::Union(1, Box::new(value))
}

fn word(index: u32, word: &str) -> Avro {
    Avro::Enum(index, word.into())
}

/// The sample of this name, as the next version holds it in memory.
fn sample(name: &str) -> (Event, Avro) {
    let (_, event) = records::events().into_iter().find(|(n, _)| *n == name).unwrap();
    let value = read_by_next(&Codec::offline().encode_event(&event).unwrap()[5..]);
    (event, value)
}

fn today() -> Codec {
    let codec = Codec::offline();
    codec.teach(ID, &next());
    codec
}

#[test]
fn the_next_version_may_follow_todays() {
    assert_eq!(compatibility::problems(EVENT_SCHEMA, &next()), Vec::<String>::new());
}

#[test]
fn the_next_version_reads_what_today_writes() {
    for (name, event) in records::events() {
        let mut value = read_by_next(&Codec::offline().encode_event(&event).unwrap()[5..]);
        let Avro::Enum(_, kind) = get(&mut value, "kind").clone() else { panic!("{name}: kind is no enum") };
        assert_eq!(kind, event.body.name(), "{name}");
        assert_eq!(*get(&mut value, "order_refunded"), Avro::Null, "{name}");
        if let EventBody::OrderConfirmed { .. } = event.body {
            assert_eq!(*get(get(&mut value, "order_confirmed"), "channel"), Avro::Null, "{name}");
        }
    }
}

#[test]
fn today_reads_every_kind_it_knows_from_the_next_version() {
    for (name, event) in records::events() {
        let value = read_by_next(&Codec::offline().encode_event(&event).unwrap()[5..]);
        assert_eq!(today().decode_event(&write_by_next(value), records::PARTITION), Ok(event), "{name}");
    }
}

#[test]
fn fields_of_the_next_version_are_skipped_wherever_they_are() {
    let (event, mut value) = sample("OrderConfirmed");
    set(&mut value, "again", some(word(1, "CARD")));
    set(get(&mut value, "order_confirmed"), "channel", some(word(1, "WEB")));
    set(get(&mut value, "order_confirmed"), "tags", Avro::Array(vec![Avro::String("a".into()), Avro::String("b".into())]));
    assert_eq!(today().decode_event(&write_by_next(value), records::PARTITION), Ok(event));
    let (event, mut value) = sample("VoucherOpened");
    set(get(get(&mut value, "voucher_opened"), "price"), "tax_minor", some(Avro::Long(380)));
    assert_eq!(today().decode_event(&write_by_next(value), records::PARTITION), Ok(event));
}

#[test]
fn a_kind_of_the_next_version_is_unknown_and_not_unreadable() {
    let (_, mut value) = sample("OrderPaid");
    set(&mut value, "kind", word(10, "OrderRefunded"));
    set(&mut value, "order_paid", Avro::Union(0, Box::new(Avro::Null)));
    let refunded = [
        ("order_id", Avro::String("0198a2b4-5c6d-8e7f-8123-456789abcdef".into())),
        ("how", word(2, "VOUCHER")),
        ("was", word(3, "PAID")),
        ("amount", Avro::Union(0, Box::new(Avro::Null))),
    ];
    let refunded = Avro::Record(refunded.map(|(name, value)| (name.to_owned(), value)).into());
    set(&mut value, "order_refunded", some(refunded));
    let bytes = write_by_next(value);
    assert_eq!(today().decode_event(&bytes, 0), Err(DecodeError::UnknownKind("OrderRefunded".into())));
    let cut = today().decode_event(&bytes[..bytes.len() - 1], 0);
    assert!(matches!(cut, Err(DecodeError::Unreadable(_))), "{cut:?}");
}

#[test]
fn a_reason_of_the_next_version_is_unknown_and_not_unreadable() {
    let (_, mut value) = sample("OrderRejected/sold_out");
    set(get(&mut value, "order_rejected"), "reason", word(6, "BANNED"));
    assert_eq!(today().decode_event(&write_by_next(value), 0), Err(DecodeError::UnknownKind("BANNED".into())));
}

/// UNKNOWN is a reader's word. A record that says it means nothing to any version, so nobody may wait for a newer one.
#[test]
fn the_word_unknown_itself_is_unreadable() {
    let (event, mut value) = sample("OrderRejected/sold_out");
    set(&mut value, "kind", word(0, "UNKNOWN"));
    let long_way = today().decode_event(&write_by_next(value), 0);
    let mut bytes = Codec::offline().encode_event(&event).unwrap();
    let kind = bytes.iter().position(|byte| *byte == 2 * 4).expect("the fourth symbol is OrderRejected");
    let at =
        (kind..bytes.len()).find(|at| bytes[*at..].starts_with(&[8, 0, 0, 0, 2])).expect("the kind stands before the bodies");
    bytes[at] = 0;
    let short_way = Codec::offline().decode_event(&bytes, 0);
    for read in [long_way, short_way] {
        assert_eq!(read, Err(DecodeError::Unreadable("kind is UNKNOWN".into())));
    }
}

#[test]
fn a_body_that_kind_does_not_name_is_unreadable() {
    let (_, mut value) = sample("OrderPaid");
    set(&mut value, "kind", word(7, "OrderExpired"));
    let other_body = today().decode_event(&write_by_next(value.clone()), 0);
    set(&mut value, "order_paid", Avro::Union(0, Box::new(Avro::Null)));
    let no_body = today().decode_event(&write_by_next(value.clone()), 0);
    let (_, mut expired) = sample("OrderExpired");
    set(&mut value, "order_expired", some(get(&mut expired, "order_expired").clone()));
    assert!(today().decode_event(&write_by_next(value.clone()), 0).is_ok());
    let (_, mut paid) = sample("OrderPaid");
    set(&mut value, "order_paid", some(get(&mut paid, "order_paid").clone()));
    let two_bodies = today().decode_event(&write_by_next(value), 0);
    for read in [other_body, no_body, two_bodies] {
        assert!(matches!(read, Err(DecodeError::Unreadable(_))), "{read:?}");
    }
}

#[test]
fn ids_that_are_none_are_unreadable() {
    for (name, field_of_body, id) in [
        ("OrderPaid", Some("order_paid"), "order_id"),
        ("RequestRepeated", Some("request_repeated"), "order_id"),
        ("OrderPaid", None, "voucher_id"),
        ("OrderPaid", None, "request_id"),
    ] {
        let (_, mut value) = sample(name);
        let record = match field_of_body {
            Some(body) => get(&mut value, body),
            None => &mut value,
        };
        set(record, id, Avro::String("no id {of} ours".into()));
        let read = today().decode_event(&write_by_next(value), 0);
        assert!(matches!(read, Err(DecodeError::Unreadable(_))), "{name}.{id}: {read:?}");
    }
}

#[test]
fn a_forbidden_change_is_found() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 10] = [
        ("a field removed", |s| s["fields"].as_array_mut().unwrap().retain(|f| f["name"] != "held")),
        ("a body removed", |s| s["fields"].as_array_mut().unwrap().retain(|f| f["name"] != "order_paid")),
        ("a field without default", |s| push(&mut s["fields"], json!({"name": "new", "type": "string"}))),
        ("a wider type", |s| field(s, "rules_version")["type"] = json!("long")),
        ("another type", |s| field(s, "remaining")["type"] = json!("string")),
        ("another unit", |s| field(s, "decided_at")["type"]["logicalType"] = json!("timestamp-micros")),
        ("a field renamed", |s| field(s, "remaining")["name"] = json!("left")),
        ("a body that may not be null", |s| {
            let record = body(s, "order_paid").clone();
            *field(s, "order_paid") = json!({"name": "order_paid", "type": record});
        }),
        ("a symbol removed", |s| {
            field(s, "kind")["type"]["symbols"].as_array_mut().unwrap().retain(|symbol| symbol != "OrderPaid");
        }),
        ("an enum without UNKNOWN", |s| {
            let silent = json!({"type": "enum", "name": "New", "symbols": ["A"]});
            push(&mut s["fields"], json!({"name": "new", "type": ["null", silent], "default": null}));
        }),
    ];
    for (what, change) in changes {
        let problems = compatibility::problems(EVENT_SCHEMA, &changed(EVENT_SCHEMA, change));
        assert!(!problems.is_empty(), "{what} was not found");
    }
    assert!(!compatibility::problems(REQUEST_SCHEMA, EVENT_SCHEMA).is_empty());
}
