//! Money and other numbers: one fate for an order that is paid in the moment it expires, and no number that stops a lane.

use std::collections::BTreeMap;

use domain::{EventBody, Money, OrderId, RefusalReason, Request, RequestBody, Timestamp};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use testkit::{World, order_request, voucher_request};

use crate::running::{Instance, append_all, assert_tables_equal_the_log, buy, orders_of, publish, settled};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_paid_or_expires_and_the_money_of_the_loser_is_due_back() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::builder().partitions(1).build();
    let voucher = world.voucher_id();
    let mut terms = world.terms(1_000, 1, 0);
    terms.payment_window_ms = Some(1);
    let price = terms.price.clone();
    world.append_request(0, &voucher_request(&voucher, RequestBody::VoucherPublished(terms)));
    let _service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "7")]);
    let orders = orders_of(&world, &voucher, 0..1_000);
    append_all(&world, 0, &orders);
    settled(&world, 0).await;

    let ids: Vec<OrderId> = orders.iter().filter_map(|request| request.body.order_id()).collect();
    let pay = |order_id: OrderId, payment_ref: String| {
        voucher_request(
            &voucher,
            RequestBody::PaymentReceived { order_id, payment_ref, amount: price.clone(), paid_at: Timestamp(0) },
        )
    };
    let mut race: Vec<Request> = ids.iter().map(|id| pay(*id, format!("in time {id}"))).collect();
    race.extend(ids.iter().map(|order_id| voucher_request(&voucher, RequestBody::PaymentWindowElapsed { order_id: *order_id })));
    race.shuffle(&mut random);
    // Another payment of each, after all of that.
    race.extend(ids.iter().map(|id| pay(*id, format!("late {id}"))));
    append_all(&world, 0, &race);
    let events = settled(&world, 0).await;

    let mut fates: BTreeMap<OrderId, Vec<&EventBody>> = BTreeMap::new();
    for event in &events[1 + ids.len()..] {
        fates.entry(event.body.order_id().expect("it is about an order")).or_default().push(&event.body);
    }
    let refused = |body: &EventBody, wanted: RefusalReason, owed: Option<&Money>| matches!(body, EventBody::RequestRefused { reason, due_back, .. } if *reason == wanted && due_back.as_ref() == owed);
    let (mut paid, mut expired) = (0, 0);
    for (id, fate) in &fates {
        let [first, second, late] = fate[..] else { panic!("{id}: {fate:?}") };
        match first {
            EventBody::OrderPaid { .. } => {
                paid += 1;
                assert!(refused(second, RefusalReason::Final, None), "{id}: {fate:?}");
                assert!(refused(late, RefusalReason::AlreadyPaid, Some(&price)), "{id}: {fate:?}");
            }
            EventBody::OrderExpired { .. } => {
                expired += 1;
                assert!(refused(second, RefusalReason::PaymentTooLate, Some(&price)), "{id}: {fate:?}");
                assert!(refused(late, RefusalReason::PaymentTooLate, Some(&price)), "{id}: {fate:?}");
            }
            other => panic!("{id}: {other:?}"),
        }
    }
    assert!(paid > 0 && expired > 0 && paid + expired == ids.len(), "{paid} paid, {expired} expired");
    assert_eq!(events.last().map(|e| e.remaining), Some(expired as i64));
    assert_tables_equal_the_log(&world, &events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_makes_no_sense_refuses_its_own_request_only() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 100, 100, 0);
    let order_id = world.order_id(&voucher, "ann", None);
    let amount = |minor| Money::new(minor, "EUR");
    let pay = |minor| RequestBody::PaymentReceived {
        order_id,
        payment_ref: format!("ref {minor}"),
        amount: amount(minor),
        paid_at: Timestamp(i64::MAX),
    };
    let change = |delta, expected_terms_version| RequestBody::StockChanged { delta, expected_terms_version };
    buy(&world, &voucher, "ann", 0);
    let mut asked: Vec<Request> = [i64::MAX, i64::MIN, 0, -1, 1 << 31, (1 << 53) + 1]
        .into_iter()
        .map(|quantity| order_request(&voucher, world.order_id(&voucher, "big", Some(&quantity.to_string())), "big", quantity))
        .collect();
    let bodies = [
        change(i64::MAX, 1),
        change(i64::MIN, 1),
        change(1 << 31, 1),
        change(1, i64::MIN),
        change(1, i64::MAX),
        pay(i64::MAX),
        pay(i64::MIN),
        pay(0),
        pay(1_000_000),
    ];
    asked.extend(bodies.map(|body| voucher_request(&voucher, body)));
    let terms = world.terms(10, 1, 0);
    let odd_terms = [
        domain::Terms { total: i64::MAX, ..terms.clone() },
        domain::Terms { total: 0, ..terms.clone() },
        domain::Terms { total: -1, ..terms.clone() },
        domain::Terms { per_user_limit: i64::MIN, ..terms.clone() },
        domain::Terms { price: amount(i64::MAX), ..terms.clone() },
        domain::Terms { price: amount(-1), ..terms.clone() },
        domain::Terms { begins_at: Timestamp(i64::MIN), ..terms.clone() },
        domain::Terms { ends_at: Timestamp(i64::MAX), ..terms.clone() },
        domain::Terms { payment_window_ms: Some(i64::MAX), ..terms.clone() },
        domain::Terms { payment_window_ms: Some(-1), ..terms },
    ];
    asked.extend(odd_terms.map(|terms| voucher_request(&world.voucher_id(), RequestBody::VoucherPublished(terms))));
    append_all(&world, 0, &asked);
    buy(&world, &voucher, "ben", 0);
    let service = Instance::start(&world, &[]);

    let events = settled(&world, 0).await;
    for (request, event) in asked.iter().zip(&events[2..]) {
        assert!(matches!(event.body.name(), "OrderRejected" | "RequestRefused"), "{request:?} gave {event:?}");
    }
    let last = events.last().unwrap();
    assert_eq!((last.body.name(), last.remaining), ("OrderConfirmed", 98));
    assert_eq!(world.records(&world.connections().topics.dead_letters, 0), []);
    assert_tables_equal_the_log(&world, &events).await;
    assert!(service.readiness().starts_with("ready"), "{}", service.readiness());

    // Nothing that counts is narrower than 64 bits or can run out unseen.
    let client = world.postgres().await;
    let sequences: i64 = client.query_one("SELECT count(*) FROM pg_sequences", &[]).await.unwrap().get(0);
    let narrow = "SELECT table_name || '.' || column_name FROM information_schema.columns
        WHERE table_name IN ('orders', 'vouchers', 'lane_positions') AND column_name <> 'partition'
          AND data_type IN ('smallint', 'integer', 'real', 'double precision', 'numeric', 'timestamp without time zone')";
    let narrow: Vec<String> = client.query(narrow, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!((sequences, narrow), (0, Vec::new()));
}
