//! Requests that reach the log while every answer of the broker is lost: "failed" may not mean "not there".

use std::collections::HashSet;

use devstack::kafka::{ClusterOptions, start_cluster};
use futures::future::join_all;
use infra::redis::Store;
use testkit::{Mode, Proxy, World, wait_until_async};

use crate::shop::{PATIENCE, Shop, asked_for, put_on_sale};

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_lost_gives_no_unit_back() {
    let proxy = Proxy::start().unwrap();
    let options = ClusterOptions { brokers: 1, advertised: Some(vec![proxy.port()]), ..ClusterOptions::default() };
    let brokers = start_cluster(options).unwrap();
    proxy.set_target(brokers[0].port());
    let world = World::builder().kafka(brokers[0].endpoint()).build();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(20, 1, 1)).await;
    let vars = [("DOORBUSTER_PURCHASE_ACK_MS", "200"), ("DOORBUSTER_DELIVERY_TIMEOUT_MS", "2000")];
    let shop = Shop::open(&world, &vars).await;
    // The producer knows the way before it gets bad.
    shop.buy(&voucher, "first", None, 1).await.order_id();
    let metric = async |name: &str| -> u64 {
        let metrics = shop.admin("metrics").await.1;
        metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
    };
    let unacknowledged = async || metric("doorbuster_purchase_unacknowledged ").await;
    wait_until_async(PATIENCE, "the first acknowledgement", async || unacknowledged().await == 0).await;

    proxy.set(Mode::DropReplies);
    let users: Vec<_> = (1..50).map(|i| format!("u{i}")).collect();
    let replies = join_all(users.iter().map(|user| shop.buy(&voucher, user, None, 1))).await;
    let (accepted, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 202);
    assert_eq!(accepted.len(), 19, "every unit is promised once");
    refused.iter().for_each(|reply| reply.assert_problem(409, "sold_out"));
    // The producer gives up on them, and each is sent again: none of that may release a unit.
    let given_up = async || metric("doorbuster_purchase_published_again_total ").await >= 19;
    wait_until_async(PATIENCE, "deliveries to be given up and begun again", given_up).await;
    shop.buy(&voucher, "late", None, 1).await.assert_problem(409, "sold_out");
    assert_eq!(metric("doorbuster_purchase_released_total ").await, 0);

    proxy.set(Mode::Open);
    wait_until_async(PATIENCE, "all acknowledgements", async || unacknowledged().await == 0).await;
    let asked: Vec<_> = asked_for(&world, &voucher).into_iter().map(|(id, _, _)| id).collect();
    assert!(asked.len() > 20, "no request was in the log before its acknowledgement was lost");
    let mut promised: HashSet<_> = accepted.iter().map(|reply| reply.order_id()).collect();
    promised.insert(world.order_id(&voucher, "first", None));
    assert_eq!(asked.into_iter().collect::<HashSet<_>>(), promised);
    let found = store.voucher(&voucher).await.unwrap().unwrap();
    assert_eq!((found.stock, found.reserved), (0, 20));
}
