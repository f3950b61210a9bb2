//! Each answer of POST.

use domain::{Terms, VoucherState};
use futures::future::join_all;
use infra::redis::Store;
use serde_json::json;
use testkit::World;

use crate::shop::{Shop, asked_for, changed, on_sale, opened, put_on_sale, write_order, write_voucher};

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_is_accepted_and_a_repeat_gives_the_same() {
    let (world, store, voucher, shop) = on_sale(10, 2, &[]).await;
    let first = shop.buy(&voucher, "u", None, 1).await;
    let order = first.order_id();
    assert_eq!(order, world.order_id(&voucher, "u", None));
    assert_eq!(first.headers["location"], format!("/v1/vouchers/{voucher}/orders/{order}"));
    assert_eq!(first.headers["cache-control"], "no-store");
    assert_eq!(first.body, json!({"order_id": order, "voucher_id": voucher, "status": "pending"}));
    let again = shop.buy(&voucher, "u", None, 1).await;
    assert_eq!(again.order_id(), order);
    // No body is one unit.
    assert_eq!(shop.send(shop.post(voucher.as_str(), "u")).await.order_id(), order);
    assert_eq!(asked_for(&world, &voucher), [(order, "u".to_owned(), 1)], "the acknowledgement was remembered");
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().stock, 9);
    // Another instance remembers nothing: it publishes again, with what is stored.
    let other = Shop::open(&world, &[]).await;
    assert_eq!(other.buy(&voucher, "u", None, 1).await.order_id(), order);
    assert_eq!(asked_for(&world, &voucher), [(order, "u".to_owned(), 1), (order, "u".to_owned(), 1)]);
    other.buy(&voucher, "u", None, 2).await.assert_problem(422, "other_quantity");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_makes_another_order_and_the_limit_holds() {
    let (_world, _store, voucher, shop) = on_sale(3, 2, &[]).await;
    let first = shop.buy(&voucher, "u", Some("1"), 1).await.order_id();
    let second = shop.buy(&voucher, "u", Some("2"), 1).await.order_id();
    assert_ne!(first, second);
    shop.buy(&voucher, "u", Some("3"), 1).await.assert_problem(409, "limit_reached");
    shop.buy(&voucher, "v", None, 3).await.assert_problem(409, "limit_reached");
    shop.buy(&voucher, "v", None, 2).await.assert_problem(409, "sold_out");
    shop.buy(&voucher, "v", None, 1).await.order_id();
    shop.buy(&voucher, "w", None, 1).await.assert_problem(409, "sold_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_and_the_state_are_answered() {
    let world = World::new();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let shop = Shop::open(&world, &[]).await;
    let now = store.now().await.unwrap();

    let early = world.voucher_id();
    let usual = world.terms(10, 1, 1);
    put_on_sale(&store, &early, &Terms { begins_at: now.plus(90_500), ends_at: now.plus(200_000), ..usual.clone() }).await;
    let reply = shop.buy(&early, "u", None, 1).await;
    reply.assert_problem(403, "not_started");
    assert!(reply.body["begins_at"].as_str().unwrap().ends_with('Z'));
    assert!((80..=91).contains(&reply.body["retry_after"].as_u64().unwrap()), "{reply:?}");

    let late = world.voucher_id();
    put_on_sale(&store, &late, &Terms { begins_at: now.plus(-2), ends_at: now.plus(-1), ..usual.clone() }).await;
    shop.buy(&late, "u", None, 1).await.assert_problem(410, "ended");

    for (state, status, code) in [(VoucherState::Paused, 403, "paused"), (VoucherState::Closed, 410, "closed")] {
        let voucher = world.voucher_id();
        put_on_sale(&store, &voucher, &usual).await;
        store.settle(&[(changed(&voucher, &usual, state), 1)]).await.unwrap();
        shop.buy(&voucher, "u", None, 1).await.assert_problem(status, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voucher_that_redis_does_not_have_is_unknown_only_if_postgres_agrees() {
    let world = World::new();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let shop = Shop::open(&world, &[]).await;
    let (never, lost, warming) = (world.voucher_id(), world.voucher_id(), world.voucher_id());
    write_voucher(&world, &lost).await;
    store.settle(&[(opened(&warming, &world.terms(10, 1, 1)), 0)]).await.unwrap();
    shop.buy(&never, "u", None, 1).await.assert_problem(404, "unknown_voucher");
    shop.buy(&lost, "u", None, 1).await.assert_problem(503, "not_ready");
    shop.buy(&warming, "u", None, 1).await.assert_problem(503, "not_ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_winner_who_retries_gets_his_order_whatever_the_gate_says() {
    let (world, store, voucher, shop) = on_sale(1, 1, &[]).await;
    let order = shop.buy(&voucher, "u", None, 1).await.order_id();
    // Decided and settled: no longer in flight, but held.
    write_order(&world, &voucher, &order, "u", 1).await;
    let event = domain::EventBody::OrderConfirmed {
        order_id: order,
        user_id: domain::UserId::parse("u").unwrap(),
        quantity: 1,
        requested_at: domain::Timestamp(0),
        expires_at: None,
        slot: 0,
    };
    let confirmed = domain::Event { body: event, ..changed(&voucher, &world.terms(1, 1, 1), VoucherState::Open) };
    store.settle(&[(confirmed, 1)]).await.unwrap();
    assert_eq!(store.reservation(&voucher, &order).await.unwrap(), None);

    let reply = shop.buy(&voucher, "u", None, 1).await;
    assert_eq!((reply.order_id(), &reply.body["status"]), (order, &json!("confirmed")));
    shop.buy(&voucher, "u", None, 2).await.assert_problem(422, "other_quantity");
    shop.buy(&voucher, "u", Some("another"), 1).await.assert_problem(409, "limit_reached");
    shop.buy(&voucher, "loser", None, 1).await.assert_problem(409, "sold_out");
    assert_eq!(asked_for(&world, &voucher).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_hammering_is_slowed_down_and_others_are_not() {
    let vars = [("DOORBUSTER_PURCHASE_USER_RATE", "1"), ("DOORBUSTER_PURCHASE_USER_BURST", "3")];
    let (_world, _store, voucher, shop) = on_sale(10, 1, &vars).await;
    let replies = join_all((0..40).map(|_| shop.buy(&voucher, "a", None, 1))).await;
    let (slowed, accepted): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 429);
    assert!(accepted.len() >= 3 && !slowed.is_empty(), "{} accepted", accepted.len());
    for reply in slowed {
        reply.assert_problem(429, "too_many_requests");
    }
    shop.buy(&voucher, "b", None, 1).await.order_id();
}
