//! GET of an order and of a voucher, and the second listener.

use domain::VoucherState;
use serde_json::json;
use testkit::wait_until_async;

use crate::shop::{PATIENCE, changed, on_sale, write_order, write_position, write_voucher};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_pending_from_the_first_moment_then_its_fate_and_only_its_owners() {
    let (world, _store, voucher, shop) = on_sale(10, 1, &[]).await;
    let order = shop.buy(&voucher, "u", None, 1).await.order_id();
    let reply = shop.order(&voucher, &order, "u").await;
    assert_eq!(reply.status, 200);
    assert_eq!((&reply.body["status"], &reply.body["quantity"]), (&json!("pending"), &json!(1)));
    assert_eq!((&reply.body["order_id"], &reply.body["voucher_id"]), (&json!(order), &json!(voucher)));
    assert_eq!(reply.body["requested_at"].as_str().unwrap().len(), "2026-01-31T10:00:00.000Z".len());
    shop.order(&voucher, &order, "other").await.assert_problem(404, "unknown_order");
    shop.send(shop.get(&format!("{voucher}/orders/{order}"))).await.assert_problem(401, "unauthorized");

    let decided = world.order_id(&voucher, "w", None);
    write_order(&world, &voucher, &decided, "w", 2).await;
    let reply = shop.order(&voucher, &decided, "w").await;
    assert_eq!((reply.status.as_u16(), &reply.body["status"], &reply.body["quantity"]), (200, &json!("confirmed"), &json!(2)));
    assert!(reply.body["decided_at"].is_string());
    shop.order(&voucher, &decided, "u").await.assert_problem(404, "unknown_order");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_order_only_once_everything_before_is_decided() {
    let (world, _store, voucher, shop) = on_sale(10, 1, &[]).await;
    let never = world.order_id(&voucher, "u", Some("never"));
    let is_none = async || shop.order(&voucher, &never, "u").await.status == 404;
    wait_until_async(PATIENCE, "the log's end to be known", is_none).await;

    shop.buy(&voucher, "u", None, 1).await.order_id();
    let is_open = async || shop.order(&voucher, &never, "u").await.status == 503;
    wait_until_async(PATIENCE, "the undecided request to be seen", is_open).await;
    shop.order(&voucher, &never, "u").await.assert_problem(503, "undecided");
    // Not an order of this voucher: certain at once.
    let elsewhere = world.order_id(&world.voucher_id(), "u", None);
    shop.order(&voucher, &elsewhere, "u").await.assert_problem(404, "unknown_order");

    write_position(&world, 1).await;
    shop.order(&voucher, &never, "u").await.assert_problem(404, "unknown_order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voucher_is_shown_from_redis_else_from_postgres() {
    let (world, store, voucher, shop) = on_sale(10, 2, &[]).await;
    shop.buy(&voucher, "u", None, 2).await.order_id();
    store.settle(&[(changed(&voucher, &world.terms(10, 2, 1), VoucherState::Paused), 1)]).await.unwrap();
    let reply = shop.send(shop.get(voucher.as_str())).await;
    assert_eq!(reply.status, 200);
    let body = &reply.body;
    assert_eq!((&body["total"], &body["stock"], &body["per_user_limit"]), (&json!(10), &json!(8), &json!(2)));
    assert_eq!((&body["state"], &body["gate"], &body["title"]), (&json!("paused"), &json!("ready"), &json!("A test's voucher")));
    assert_eq!(body["price"], json!({"minor": 1000, "currency": "EUR"}));
    assert!(body["begins_at"].is_string() && body["ends_at"].is_string());

    let lost = world.voucher_id();
    write_voucher(&world, &lost).await;
    let reply = shop.send(shop.get(lost.as_str())).await;
    assert_eq!((&reply.body["stock"], &reply.body["gate"]), (&json!(4), &json!("warming")));
    shop.send(shop.get(world.voucher_id().as_str())).await.assert_problem(404, "unknown_voucher");
    shop.send(shop.get("{v}")).await.assert_problem(400, "malformed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_listener_tells_health_and_numbers() {
    let (_world, _store, voucher, shop) = on_sale(1, 1, &[]).await;
    assert_eq!(shop.admin("healthz").await.0, 200);
    wait_until_async(PATIENCE, "readiness", async || shop.admin("readyz").await.0 == 200).await;
    shop.buy(&voucher, "secret-user", None, 1).await.order_id();
    shop.buy(&voucher, "b", None, 1).await.assert_problem(409, "sold_out");
    shop.send(shop.post(voucher.as_str(), "u").bearer_auth("x")).await.assert_problem(401, "unauthorized");
    let (_, metrics) = shop.admin("metrics").await;
    for line in [
        "doorbuster_purchase_answers_total{call=\"purchase\",code=\"accepted\"} 1",
        "doorbuster_purchase_answers_total{call=\"purchase\",code=\"sold_out\"} 1",
        "doorbuster_purchase_answers_total{call=\"purchase\",code=\"unauthorized\"} 1",
        "doorbuster_purchase_step_seconds_count{step=\"reserve\"} 2",
        "doorbuster_purchase_step_seconds_count{step=\"publish\"} 1",
        "doorbuster_purchase_in_flight 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert!(!metrics.contains("secret-user") && !metrics.contains(voucher.as_str()));
}
