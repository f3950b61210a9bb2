//! Requests of one order keep their sequence whatever holds them up, and an order's fate is known for as long as its row is there.

use domain::{CancelledBy, EventBody, OrderStatus, RefusalReason, RequestBody};
use testkit::{World, order_request, voucher_request, wait_until};

use crate::running::{
    Instance, PATIENCE, append_all, assert_tables_equal_the_log, buy, events_up_to, orders_of, publish, settled, sql,
};

fn cancellation(world: &World, voucher: &domain::VoucherId, user: &str) -> domain::Request {
    let order_id = world.order_id(voucher, user, None);
    voucher_request(voucher, RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_never_overtakes_its_order_that_has_to_wait() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 10, 1, 0);
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "1")]);
    settled(&world, 0).await;
    let order = order_request(&voucher, world.order_id(&voucher, "ann", None), "ann", 1);

    let mut client = world.postgres().await;
    let lock = client.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM lane_positions FOR UPDATE", &[]).await.unwrap();
    world.append_request(0, &order);
    world.append_request(0, &cancellation(&world, &voucher, "ann"));
    buy(&world, &voucher, "ben", 0);
    wait_until(PATIENCE, "the lane to be held up", || service.readiness().contains("partition 0 is held up"));
    lock.rollback().await.unwrap();
    // The same order once more, long after its end.
    let last = world.append_request(0, &order);

    let events = events_up_to(&world, 0, last + 1);
    let names: Vec<_> = events.iter().map(|e| e.body.name()).collect();
    assert_eq!(names, ["VoucherOpened", "OrderConfirmed", "OrderCancelled", "OrderConfirmed", "RequestRepeated"]);
    assert!(matches!(events[4].body, EventBody::RequestRepeated { status: OrderStatus::Cancelled, .. }), "{:?}", events[4]);
    assert_eq!((events[4].remaining, events[4].held), (9, 0), "its unit came back, once");
    assert_tables_equal_the_log(&world, &events).await;
}

/// Nobody may guess what an unreadable record asked for: the cancellation of its order is refused, and says so; the order gets its fate
/// when it comes again.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_could_not_be_read_is_decided_when_it_comes_again() {
    let world = World::builder().partitions(1).build();
    let topics = &world.connections().topics;
    let voucher = publish(&world, 10, 1, 0);
    let order = order_request(&voucher, world.order_id(&voucher, "ann", None), "ann", 1);
    let bytes = world.codec().encode_request(&order).unwrap();
    world.append(&topics.requests, 0, voucher.as_str().as_bytes(), &bytes[..bytes.len() - 1]);
    world.append_request(0, &cancellation(&world, &voucher, "ann"));
    buy(&world, &voucher, "ben", 0);
    let _service = Instance::start(&world, &[]);
    let events = settled(&world, 0).await;
    let refusal = |at: usize| match &events[at].body {
        EventBody::RequestRefused { reason, .. } => *reason,
        other => panic!("{other:?}"),
    };
    assert_eq!((refusal(1), refusal(2)), (RefusalReason::Unreadable, RefusalReason::UnknownOrder));
    assert_eq!(events[3].body.name(), "OrderConfirmed", "others are not held up");

    // The dead letter, mended and sent again the next day, twice; then the cancellation.
    for request in [&order, &order, &cancellation(&world, &voucher, "ann"), &order] {
        world.append_request(0, request);
    }
    let events = settled(&world, 0).await;
    let names: Vec<_> = events[4..].iter().map(|e| e.body.name()).collect();
    assert_eq!(names, ["OrderConfirmed", "RequestRepeated", "OrderCancelled", "RequestRepeated"]);
    assert_eq!((events[7].remaining, events[7].held), (9, 0));
    assert_eq!(world.records(&topics.dead_letters, 0).len(), 1);
    assert_tables_equal_the_log(&world, &events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_known_however_long_ago_its_order_was() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 10, 1, 0);
    let orders = orders_of(&world, &voucher, 0..6);
    let cancelled = [cancellation(&world, &voucher, "user-0"), cancellation(&world, &voucher, "user-1")];
    append_all(&world, 0, &orders);
    append_all(&world, 0, &cancelled);
    let service = Instance::start(&world, &[]);
    let before = settled(&world, 0).await;
    service.stop().unwrap();

    // Ten years pass, as far as a row can tell.
    sql(
        &world,
        "UPDATE orders SET requested_at = requested_at - interval '10 years', decided_at = decided_at - interval '10 years',
             changed_at = changed_at - interval '10 years';
         UPDATE vouchers SET begins_at = begins_at - interval '10 years', ends_at = ends_at - interval '10 years'",
    )
    .await;
    append_all(&world, 0, &orders);
    append_all(&world, 0, &cancelled);
    let _service = Instance::start(&world, &[]);
    let events = settled(&world, 0).await;
    assert_eq!(events[..before.len()], before);
    let names: Vec<_> = events[before.len()..].iter().map(|e| e.body.name()).collect();
    assert_eq!(names, [["RequestRepeated"; 6].as_slice(), &["RequestRefused"; 2]].concat());
    assert_eq!(events.last().map(|e| e.remaining), Some(6), "no second order, no second return");
    let rows: i64 = world.postgres().await.query_one("SELECT count(*) FROM orders", &[]).await.unwrap().get(0);
    assert_eq!(rows, 6);
}
