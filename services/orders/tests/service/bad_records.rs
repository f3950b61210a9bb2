//! What cannot be decided: it must neither stop the partition nor disappear.

use domain::{EventBody, RefusalReason, RejectReason, RequestBody};
use infra::kafka::{Record, client_config};
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer},
};
use testkit::{World, order_request, voucher_request, wait_until};

use crate::running::{Instance, PATIENCE, assert_tables_equal_the_log, buy, events_up_to, publish, settled};

fn header<'r>(record: &'r Record, name: &str) -> &'r str {
    let value = record.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_slice());
    std::str::from_utf8(value.unwrap_or_default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_becomes_a_dead_letter_and_its_neighbours_are_decided() {
    let world = World::builder().partitions(1).build();
    let topics = &world.connections().topics;
    let voucher = publish(&world, 100, 1, 0);
    let good = world.codec().encode_request(&order_request(&voucher, world.order_id(&voucher, "x", None), "x", 1)).unwrap();
    let event = domain::Event {
        voucher_id: Some(voucher.clone()),
        voucher_seq: 1,
        partition: 0,
        request_offset: 0,
        request_id: Default::default(),
        decided_at: domain::Timestamp(1),
        rules_version: 1,
        remaining: 0,
        held: 0,
        body: EventBody::VoucherOpened(world.terms(1, 1, 0)),
    };
    let unknown_schema = [&[0], 999_999u32.to_be_bytes().as_slice(), &good[5..]].concat();
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("four bytes", vec![0, 0, 0, 1]),
        ("wrong magic", [&[1], &good[1..]].concat()),
        ("random", (0..200u8).map(|n| n.wrapping_mul(151)).collect()),
        ("truncated", good[..good.len() - 3].to_vec()),
        ("trailing bytes", [good.as_slice(), &[0]].concat()),
        ("of another topic", world.codec().encode_event(&event).unwrap()),
        ("of no schema", unknown_schema),
    ];
    let mut offsets = Vec::new();
    let producer: BaseProducer = client_config(world.connections()).create().unwrap();
    for (n, (name, bytes)) in bad.iter().enumerate() {
        offsets.push(world.ends(&topics.requests, 0).high);
        let headers = OwnedHeaders::new().insert(Header { key: "origin", value: Some("test") });
        let record = BaseRecord::to(&topics.requests).partition(0).key(*name).payload(bytes).headers(headers);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(PATIENCE).unwrap();
        buy(&world, &voucher, &format!("user-{n}"), 0);
    }
    let _service = Instance::start(&world, &[]);

    let events = settled(&world, 0).await;
    let letters = world.records(&topics.dead_letters, 0);
    assert_eq!(letters.len(), bad.len());
    for ((letter, (name, bytes)), offset) in letters.iter().zip(&bad).zip(&offsets) {
        assert_eq!(&letter.payload, bytes, "{name}");
        assert_eq!(letter.key.as_deref(), Some(name.as_bytes()));
        assert_eq!(header(letter, "origin"), "test", "its own headers stay");
        assert_eq!(header(letter, "__streams.errors.topic"), topics.requests);
        assert_eq!(header(letter, "__streams.errors.partition"), "0");
        assert_eq!(header(letter, "__streams.errors.offset"), offset.to_string());
        assert!(!header(letter, "__streams.errors.message").is_empty());
        let event = &events[*offset as usize];
        let EventBody::RequestRefused { reason, .. } = &event.body else { panic!("{event:?}") };
        assert_eq!((*reason, event.voucher_seq, &event.voucher_id), (RefusalReason::Unreadable, 0, &None), "{name}");
        assert!(matches!(events[*offset as usize + 1].body, EventBody::OrderConfirmed { .. }), "after {name}");
    }
    let keys: Vec<_> = world.records(&topics.events, 0).into_iter().map(|r| r.key).collect();
    assert_eq!(keys[offsets[0] as usize].as_deref(), Some("empty".as_bytes()), "the event has the record's own key");
    assert_tables_equal_the_log(&world, &events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_postgres_cannot_hold_is_rejected_alone() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 10, 1, 0);
    let last = {
        buy(&world, &voucher, "before", 0);
        buy(&world, &voucher, "nul\0inside", 0);
        buy(&world, &voucher, "", 0);
        let mut late = order_request(&voucher, world.order_id(&voucher, "late", None), "late", 1);
        if let RequestBody::OrderRequested { requested_at, .. } = &mut late.body {
            *requested_at = domain::Timestamp(i64::MAX);
        }
        world.append_request(0, &late);
        let mut terms = world.terms(1, 1, 0);
        terms.title = "nul\0inside".into();
        world.append_request(0, &voucher_request(&world.voucher_id(), RequestBody::VoucherPublished(terms)));
        let cancel = |body| world.append_request(0, &voucher_request(&voucher, body));
        let order_id = world.order_id(&voucher, "before", None);
        let payment_ref = "\0".to_owned();
        let amount = domain::Money::new(1_000, "E\0R");
        cancel(RequestBody::PaymentReceived { order_id, payment_ref, amount, paid_at: domain::Timestamp(i64::MIN) });
        buy(&world, &voucher, "after", 0)
    };
    let service = Instance::start(&world, &[]);

    let events = events_up_to(&world, 0, last + 1);
    for offset in [2, 3] {
        let EventBody::OrderRejected { reason, user_id, .. } = &events[offset].body else { panic!("{:?}", events[offset]) };
        assert_eq!(*reason, RejectReason::Invalid);
        assert!(!user_id.as_str().contains('\0'));
    }
    assert!(matches!(events[4].body, EventBody::OrderRejected { .. }), "{:?}", events[4]);
    assert!(matches!(events[5].body, EventBody::RequestRefused { reason: RefusalReason::InvalidTerms, .. }));
    assert!(matches!(events[6].body, EventBody::RequestRefused { reason: RefusalReason::Invalid, .. }));
    assert!(matches!(events[7].body, EventBody::OrderConfirmed { .. }));
    assert_tables_equal_the_log(&world, &events).await;
    assert!(service.readiness().starts_with("ready"), "{}", service.readiness());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_unreadable_records_in_a_row_stop_only_their_partition() {
    let world = World::new();
    let topics = &world.connections().topics;
    for _ in 0..4 {
        world.append(&topics.requests, 0, b"k", b"rubbish");
    }
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_MAX_DEAD_LETTERS", "3")]);
    wait_until(PATIENCE, "the lane to stop", || service.readiness().contains("partition 0 has stopped"));
    assert!(service.readiness().contains("DOORBUSTER_ORDERS_MAX_DEAD_LETTERS"), "{}", service.readiness());
    assert!(service.metrics().contains("doorbuster_orders_stopped_partitions{partition=\"0\"} 1"), "{}", service.metrics());

    // The other partition's answer is the sentinel: nothing of the stopped one came before it.
    let other = publish(&world, 1, 1, 1);
    events_up_to(&world, 1, buy(&world, &other, "ann", 1) + 1);
    assert_eq!(world.events(0), []);
    assert_eq!(world.records(&topics.dead_letters, 0), []);
    service.stop().unwrap();

    let _service = Instance::start(&world, &[]);
    assert_eq!(settled(&world, 0).await.len(), 4);
    assert_eq!(world.records(&topics.dead_letters, 0).len(), 4);
}
