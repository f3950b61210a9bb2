//! One service, real servers: every request gives one event, in order, and the tables say the same as the log.

use crate::running::{Instance, assert_tables_equal_the_log, buy, events_up_to, publish};
use domain::{EventBody, OrderStatus, RefusalReason, RejectReason, RequestBody};
use testkit::{World, order_request, voucher_request};

#[tokio::test(flavor = "multi_thread")]
async fn each_request_gives_one_event_in_order() {
    let world = World::new();
    let service = Instance::start(&world, &[]);
    let voucher = publish(&world, 2, 1, 0);
    for user in ["ann", "bob", "cid", "ann"] {
        buy(&world, &voucher, user, 0);
    }
    let other = publish(&world, 5, 5, 1);
    let last = buy(&world, &other, "ann", 1);

    let events = events_up_to(&world, 0, 5);
    assert!(matches!(events[0].body, EventBody::VoucherOpened(_)));
    assert!(matches!(events[1].body, EventBody::OrderConfirmed { .. }));
    assert!(matches!(events[2].body, EventBody::OrderConfirmed { .. }));
    assert!(matches!(events[3].body, EventBody::OrderRejected { reason: RejectReason::SoldOut, .. }));
    assert!(matches!(events[4].body, EventBody::RequestRepeated { status: OrderStatus::Confirmed, .. }));
    assert_eq!((events[4].remaining, events[4].held), (0, 1));
    let mut all = events;
    all.extend(events_up_to(&world, 1, last + 1));
    assert_tables_equal_the_log(&world, &all).await;
    assert!(service.readiness().starts_with("ready"), "{}", service.readiness());
    service.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_request_changes_the_tables_as_it_changes_the_fold() {
    let world = World::builder().partitions(1).build();
    let _service = Instance::start(&world, &[]);
    let voucher = world.voucher_id();
    let ask = |body| world.append_request(0, &voucher_request(&voucher, body));
    let order = |user: &str| {
        let id = world.order_id(&voucher, user, None);
        world.append_request(0, &order_request(&voucher, id, user, 2));
        id
    };
    let mut terms = world.terms(10, 2, 0);
    terms.payment_window_ms = Some(1);
    ask(RequestBody::VoucherPublished(terms.clone()));
    let (paid, cancelled, expired, late) = (order("ann"), order("bob"), order("cid"), order("dan"));
    let amount = terms.price.times(2).unwrap();
    let pay = |order_id, payment_ref: &str| RequestBody::PaymentReceived {
        order_id,
        payment_ref: payment_ref.to_owned(),
        amount: amount.clone(),
        paid_at: terms.begins_at,
    };
    ask(pay(paid, "ref-1"));
    ask(pay(late, "ref-1"));
    ask(pay(late, "with\0nul"));
    ask(RequestBody::CancellationRequested { order_id: cancelled, by: domain::CancelledBy::Buyer });
    ask(RequestBody::PaymentWindowElapsed { order_id: expired });
    ask(pay(expired, "ref-2"));
    ask(RequestBody::StockChanged { delta: -3, expected_terms_version: 1 });
    ask(RequestBody::VoucherPaused { expected_terms_version: 2 });
    ask(RequestBody::VoucherClosed { expected_terms_version: 2 });
    ask(RequestBody::VoucherClosed { expected_terms_version: 3 });
    let last = ask(RequestBody::VoucherPublished(terms));

    let events = events_up_to(&world, 0, last + 1);
    let names: Vec<_> = events.iter().map(|e| e.body.name()).collect();
    assert_eq!(
        names,
        [
            "VoucherOpened",
            "OrderConfirmed",
            "OrderConfirmed",
            "OrderConfirmed",
            "OrderConfirmed",
            "OrderPaid",
            "RequestRepeated",
            "RequestRefused",
            "OrderCancelled",
            "OrderExpired",
            "RequestRefused",
            "VoucherChanged",
            "VoucherChanged",
            "RequestRefused",
            "VoucherChanged",
            "RequestRefused",
        ]
    );
    let refusal = |i: usize| match &events[i].body {
        EventBody::RequestRefused { reason, .. } => *reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(7), RefusalReason::Invalid);
    assert_eq!(refusal(10), RefusalReason::PaymentTooLate);
    assert_eq!(refusal(13), RefusalReason::StaleTerms);
    assert_eq!(refusal(15), RefusalReason::AlreadyPublished);
    assert_tables_equal_the_log(&world, &events).await;
}
