//! Servers that go away and come back, and the end of the service with work in flight.

use std::{collections::HashSet, time::Duration};

use devstack::kafka::KafkaOptions;
use domain::{OrderId, VoucherId};
use futures::future::join_all;
use infra::redis::Store;
use testkit::{World, wait_until_async};
use tokio::net::TcpStream;

use crate::shop::{PATIENCE, Shop, asked_for, on_sale, put_on_sale, redis_that_keeps_everything};

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_nothing_is_sold_and_it_heals_by_itself() {
    let redis = redis_that_keeps_everything();
    let world = World::builder().redis(redis.endpoint()).build();
    let store = Store::connect(redis.endpoint()).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(10, 1, 1)).await;
    let shop = Shop::open(&world, &[]).await;
    wait_until_async(PATIENCE, "readiness", async || shop.admin("readyz").await.0 == 200).await;
    let order = shop.buy(&voucher, "a", None, 1).await.order_id();

    redis.kill();
    shop.buy_once(&voucher, "b", None, 1).await.assert_problem(503, "gate_away");
    shop.order(&voucher, &order, "a").await.assert_problem(503, "gate_away");
    wait_until_async(PATIENCE, "unreadiness", async || shop.admin("readyz").await.0 == 503).await;
    assert_eq!(shop.admin("healthz").await.0, 200);

    redis.restart().unwrap();
    wait_until_async(PATIENCE, "a purchase", async || shop.buy(&voucher, "b", None, 1).await.status == 202).await;
    wait_until_async(PATIENCE, "readiness", async || shop.admin("readyz").await.0 == 200).await;
    assert_eq!(shop.buy(&voucher, "a", None, 1).await.order_id(), order);
    let asked: HashSet<_> = asked_for(&world, &voucher).into_iter().map(|(_, user, _)| user).collect();
    assert_eq!(asked, HashSet::from(["a".to_owned(), "b".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_answers_too_late_takes_each_unit_once() {
    let redis = redis_that_keeps_everything();
    let world = World::builder().redis(redis.endpoint()).build();
    let store = Store::connect(redis.endpoint()).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(10, 1, 1)).await;
    let shop = Shop::open(&world, &[]).await;

    redis.pause().unwrap();
    // It waits in the socket, and is carried out once Redis wakes up.
    shop.buy_once(&voucher, "u", None, 1).await.assert_problem(503, "gate_away");
    redis.resume().unwrap();
    let mut order = None;
    wait_until_async(PATIENCE, "a retry to be accepted", async || {
        let reply = shop.buy(&voucher, "u", None, 1).await;
        order = (reply.status == 202).then(|| reply.order_id());
        order.is_some()
    })
    .await;
    assert_eq!(order, Some(world.order_id(&voucher, "u", None)));
    let there = store.voucher(&voucher).await.unwrap().unwrap();
    assert_eq!((there.stock, there.reserved), (9, 1));
    assert!(asked_for(&world, &voucher).iter().all(|(id, _, _)| Some(*id) == order));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_kafka_orders_stay_pending_until_they_are_published() {
    let kafka = devstack::kafka::start(KafkaOptions::default()).unwrap();
    let world = World::builder().kafka(kafka.endpoint()).build();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(1_000, 1, 1)).await;
    let vars = [("DOORBUSTER_PURCHASE_ACK_MS", "50"), ("DOORBUSTER_PURCHASE_UNACKNOWLEDGED_MS", "1000")];
    let shop = Shop::open(&world, &vars).await;
    let first = shop.buy(&voucher, "first", None, 1).await.order_id();
    let all_acknowledged = async || shop.admin("metrics").await.1.contains("doorbuster_purchase_unacknowledged 0\n");
    wait_until_async(PATIENCE, "the first order's acknowledgement", all_acknowledged).await;

    kafka.pause().unwrap();
    let mut accepted = HashSet::new();
    for user in 0.. {
        let reply = shop.buy(&voucher, &format!("u{user}"), None, 1).await;
        if reply.status != 202 {
            reply.assert_problem(503, "overloaded");
            break;
        }
        let order = reply.order_id();
        assert_eq!(shop.order(&voucher, &order, &format!("u{user}")).await.body["status"], "pending");
        accepted.insert(order);
        assert!(user < 900, "purchases were never shed");
    }
    assert!(accepted.len() > 1);
    wait_until_async(PATIENCE, "unreadiness", async || shop.admin("readyz").await.0 == 503).await;
    let pending = format!("doorbuster_purchase_unacknowledged {}\n", accepted.len());
    let metrics = shop.admin("metrics").await.1;
    assert!(metrics.contains(&pending), "{pending} is not in\n{metrics}");

    kafka.resume().unwrap();
    wait_until_async(PATIENCE, "a purchase", async || shop.buy(&voucher, "last", None, 1).await.status == 202).await;
    wait_until_async(PATIENCE, "all acknowledgements", all_acknowledged).await;
    wait_until_async(PATIENCE, "readiness", async || shop.admin("readyz").await.0 == 200).await;
    accepted.extend([first, world.order_id(&voucher, "last", None)]);
    let asked: Vec<OrderId> = asked_for(&world, &voucher).into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(asked.iter().copied().collect::<HashSet<_>>(), accepted);
    assert_eq!(asked.len(), accepted.len(), "each was asked for once");
    let reserved = store.voucher(&voucher).await.unwrap().unwrap().reserved;
    assert_eq!(reserved, i64::try_from(accepted.len()).unwrap(), "each is still reserved, and no other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_service_sheds() {
    let kafka = devstack::kafka::start(KafkaOptions::default()).unwrap();
    let world = World::builder().kafka(kafka.endpoint()).build();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(100, 1, 1)).await;
    let vars = [("DOORBUSTER_PURCHASE_MAX_IN_FLIGHT", "4"), ("DOORBUSTER_PURCHASE_ACK_MS", "60000")];
    let shop = Shop::open(&world, &vars).await;
    kafka.pause().unwrap();
    let users: Vec<_> = (0..10).map(|i| format!("u{i}")).collect();
    let mut calls: Vec<_> = users.iter().map(|user| Box::pin(shop.buy(&voucher, user, None, 1))).collect();
    for _ in 0..6 {
        let (reply, _, rest) = futures::future::select_all(calls).await;
        reply.assert_problem(503, "overloaded");
        calls = rest;
    }
    kafka.resume().unwrap();
    for reply in join_all(calls).await {
        reply.order_id();
    }
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().reserved, 4, "who was shed holds nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_waits_for_what_is_in_flight() {
    let (world, _store, voucher, mut shop) = on_sale(100_000, 1, &[]).await;
    for round in 0..5 {
        let before = asked_for(&world, &voucher).len();
        let users: Vec<_> = (0..200).map(|i| format!("u{round}-{i}")).collect();
        let calls = join_all(users.iter().map(|user| accepted(&shop, &voucher, user)));
        let stop = async {
            wait_until_async(PATIENCE, "the first orders", async || asked_for(&world, &voucher).len() > before).await;
            shop.stop();
        };
        let (accepted, ()) = tokio::join!(calls, stop);
        let accepted: HashSet<_> = accepted.into_iter().flatten().collect();
        shop.ended().await.unwrap();
        let asked: HashSet<_> = asked_for(&world, &voucher).into_iter().map(|(id, _, _)| id).collect();
        assert!(!accepted.is_empty());
        assert!(accepted.is_subset(&asked), "an accepted order was lost");
        shop = Shop::open(&world, &[]).await;
    }
}

/// The order, if this purchase was accepted. One that comes too late finds nobody listening, which promises nothing; the client
/// sometimes waits for ever for the answer to one that it sent into a closing connection.
async fn accepted(shop: &Shop, voucher: &VoucherId, user: &str) -> Option<OrderId> {
    let reply = shop.post(voucher.as_str(), user).timeout(Duration::from_secs(5)).send().await.ok()?;
    let status = reply.status();
    let body = reply.json::<serde_json::Value>().await.ok()?;
    (status == 202).then(|| OrderId::parse(body["order_id"].as_str().expect("ids are strings")).expect("an order id"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_waits_for_acknowledgements_told_and_untold() {
    let kafka = devstack::kafka::start(KafkaOptions::default()).unwrap();
    let world = World::builder().kafka(kafka.endpoint()).build();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(100, 1, 1)).await;
    // In the first round the buyer still waits at the end, in the second he was told "pending".
    for (user, ack_deadline, line) in [("a", "60000", "in_flight 1\n"), ("b", "50", "unacknowledged 1\n")] {
        let shop = Shop::open(&world, &[("DOORBUSTER_PURCHASE_ACK_MS", ack_deadline)]).await;
        kafka.pause().unwrap();
        let order = world.order_id(&voucher, user, None);
        let stopping = async {
            let waits = async || shop.admin("metrics").await.1.contains(line);
            wait_until_async(PATIENCE, line, waits).await;
            shop.stop();
            let refused = async || TcpStream::connect(shop.address).await.is_err();
            wait_until_async(PATIENCE, "the listener to close", refused).await;
            assert_eq!(shop.admin("readyz").await.0, 503);
            assert_eq!(shop.admin("healthz").await.0, 200);
            assert!(!shop.has_ended());
            kafka.resume().unwrap();
        };
        let (reply, ()) = tokio::join!(shop.buy(&voucher, user, None, 1), stopping);
        assert_eq!(reply.order_id(), order);
        shop.ended().await.unwrap();
        assert!(asked_for(&world, &voucher).iter().any(|(id, _, _)| *id == order));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_has_a_deadline_even_without_kafka() {
    let kafka = devstack::kafka::start(KafkaOptions::default()).unwrap();
    let world = World::builder().kafka(kafka.endpoint()).build();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(100, 1, 1)).await;
    let vars = [("DOORBUSTER_PURCHASE_ACK_MS", "200"), ("DOORBUSTER_PURCHASE_SHUTDOWN_MS", "1500")];
    let shop = Shop::open(&world, &vars).await;
    kafka.pause().unwrap();
    let order = shop.buy(&voucher, "u", None, 1).await.order_id();
    shop.stop();
    let started = std::time::Instant::now();
    shop.ended().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    // Its reservation stays: the sweeper publishes it.
    assert!(store.reservation(&voucher, &order).await.unwrap().is_some());
    kafka.resume().unwrap();
}
