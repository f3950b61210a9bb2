//! Many calls at once.

use std::collections::{BTreeSet, HashSet};

use futures::future::join_all;

use crate::shop::{Shop, asked_for, on_sale};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_calls_with_one_key_are_one_order() {
    let (world, store, voucher, shop) = on_sale(10, 5, &[]).await;
    let replies = join_all((0..50).map(|_| shop.buy(&voucher, "u", Some("key"), 1))).await;
    let ids: BTreeSet<_> = replies.iter().map(|reply| reply.order_id()).collect();
    assert_eq!(ids.len(), 1);
    let asked: BTreeSet<_> = asked_for(&world, &voucher).into_iter().collect();
    assert_eq!(asked.len(), 1, "repeats carry the same order and quantity");
    let there = store.voucher(&voucher).await.unwrap().unwrap();
    assert_eq!((there.stock, there.reserved), (9, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_on_two_instances_gets_one_order_at_limit_one() {
    let (world, store, voucher, one) = on_sale(100, 1, &[]).await;
    let two = Shop::open(&world, &[]).await;
    let keys = [None, Some("a"), Some("b"), Some("c")];
    let calls = (0..64).map(|i| {
        let shop = if i % 2 == 0 { &one } else { &two };
        shop.buy(&voucher, "u", keys[(i / 2) % keys.len()], 1)
    });
    let replies = join_all(calls).await;
    let (accepted, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 202);
    let ids: HashSet<_> = accepted.iter().map(|reply| reply.order_id()).collect();
    assert_eq!(ids.len(), 1);
    for reply in refused {
        reply.assert_problem(409, "limit_reached");
    }
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().reserved, 1);
    let asked: HashSet<_> = asked_for(&world, &voucher).into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(asked, ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_shares_what_there_is() {
    let (world, store, voucher, shop) = on_sale(30, 1, &[]).await;
    let users: Vec<_> = (0..200).map(|i| format!("u{i}")).collect();
    let replies = join_all(users.iter().map(|user| shop.buy(&voucher, user, None, 1))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 202).count(), 30);
    let accepted: HashSet<_> = replies.iter().filter(|reply| reply.status == 202).map(|reply| reply.order_id()).collect();
    let asked: HashSet<_> = asked_for(&world, &voucher).into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(asked, accepted);
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().stock, 0);
}
