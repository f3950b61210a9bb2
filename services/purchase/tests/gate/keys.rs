//! What an idempotency key stands for: one try of one user for one voucher, and its quantity.

use std::collections::HashSet;

use domain::{Event, EventBody, Timestamp, UserId, VoucherState};
use serde_json::json;

use crate::shop::{asked_for, changed, on_sale, put_on_sale, write_order};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_means_nothing_to_another_user_or_voucher() {
    let (world, store, voucher, shop) = on_sale(10, 5, &[]).await;
    let other = world.voucher_id();
    put_on_sale(&store, &other, &world.terms(10, 5, 0)).await;
    let mut orders = HashSet::new();
    for (voucher, user) in [(&voucher, "ann"), (&voucher, "ben"), (&other, "ann"), (&other, "ben")] {
        let order = shop.buy(voucher, user, Some("key"), 1).await.order_id();
        assert!(orders.insert(order), "{user} got an order of somebody else");
        assert_eq!(shop.buy(voucher, user, Some("key"), 1).await.order_id(), order);
        let reader = if user == "ann" { "ben" } else { "ann" };
        shop.order(voucher, &order, reader).await.assert_problem(404, "unknown_order");
    }
    for voucher in [&voucher, &other] {
        assert_eq!(store.voucher(voucher).await.unwrap().unwrap().reserved, 2);
    }
}

/// Whether the first try is still in flight, or decided long ago and gone from Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_again_for_another_quantity_is_refused_and_the_order_stays_what_it_is() {
    let (world, store, voucher, shop) = on_sale(10, 5, &[]).await;
    shop.buy(&voucher, "ann", Some("key"), 2).await.order_id();
    let calls = (0..20).map(|i| shop.buy(&voucher, "ann", Some("key"), 1 + i % 5));
    for (i, reply) in futures::future::join_all(calls).await.into_iter().enumerate() {
        if i % 5 == 1 {
            reply.order_id();
        } else {
            reply.assert_problem(422, "other_quantity");
        }
    }
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().reserved, 2);
    assert!(asked_for(&world, &voucher).iter().all(|(_, _, quantity)| *quantity == 2));

    // Decided and settled: nothing is left of it at the gate but the units that he holds.
    let order = world.order_id(&voucher, "ben", Some("key"));
    write_order(&world, &voucher, &order, "ben", 2).await;
    let body = EventBody::OrderConfirmed {
        order_id: order,
        user_id: UserId::parse("ben").unwrap(),
        quantity: 2,
        requested_at: Timestamp(0),
        expires_at: None,
        slot: 0,
    };
    let confirmed = Event { body, ..changed(&voucher, &world.terms(10, 5, 1), VoucherState::Open) };
    store.settle(&[(confirmed, 1)]).await.unwrap();
    shop.buy(&voucher, "ben", Some("key"), 1).await.assert_problem(422, "other_quantity");
    let reply = shop.order(&voucher, &order, "ben").await;
    assert_eq!((&reply.body["status"], &reply.body["quantity"]), (&json!("confirmed"), &json!(2)));
}
