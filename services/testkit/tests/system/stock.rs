//! Stock stays what it is over restarts, and every unit can be sold however wildly people click.

use std::time::Duration;

use domain::{CancelledBy, OrderId, RequestBody};
use load::Answer;
use testkit::{WorldBuilder, buy, buyers, plan, sale, voucher_request, wait_until};

use crate::{Shop, names};

/// Starting purchase sets no stock.
#[test]
fn stock_stays_as_it_is_when_purchase_processes_start() {
    let shop = Shop::new();
    let voucher = shop.open(10);
    shop.orders.process.pause().unwrap();
    assert!((0..6).all(|i| buy(&shop.url(), &voucher, &format!("first-{i}")).is_accepted()));
    let stock = || shop.world.in_redis(&voucher).map(|v| v.stock);
    assert_eq!(stock(), Some(4));
    shop.purchase.crash();
    assert_eq!(stock(), Some(4));
    let two = ["purchase-2", "purchase-3"].map(|name| shop.world.launch_service("purchase", name, &[]));
    two.iter().for_each(testkit::Service::wait_ready);
    assert_eq!(stock(), Some(4));
    let urls = [shop.url(), two[0].url(), two[1].url()];
    let answers: Vec<Answer> = (0..9).map(|i| buy(&urls[i % 3], &voucher, &format!("second-{i}"))).collect();
    assert_eq!(answers.iter().filter(|a| a.is_accepted()).count(), 4, "{answers:?}");
    assert!(answers.iter().all(|a| a.is_accepted() || a.kind == "sold_out"), "{answers:?}");
    shop.orders.process.resume().unwrap();
    shop.world.wait_settled(&[&voucher]);
    assert_eq!(shop.world.assert_audit().vouchers[0].sold, 10);
}

/// No click takes more than its unit, and no "sold out" outlives the units that come back.
#[test]
fn one_user_who_hammers_takes_one_unit_and_returned_units_are_sold_on_every_instance() {
    // The bound on hammering lies before the gate; here the gate itself is asked.
    let unbounded = [("DOORBUSTER_PURCHASE_USER_RATE", "1000000"), ("DOORBUSTER_PURCHASE_USER_BURST", "1000000")];
    let shop = Shop::on(WorldBuilder::build, &unbounded);
    let voucher = shop.open(10);
    let hammer = load::Plan { retries: 2, ..plan(shop.url(), &voucher, Duration::ZERO) };
    let report = sale(hammer, buyers((0..500).map(|_| "a".to_owned()))).join().unwrap();
    let orders: std::collections::BTreeSet<_> = report.visits.iter().flat_map(|v| &v.orders).cloned().collect();
    assert_eq!(orders.len(), 1, "{:?}", report.answers);
    let others: Vec<Answer> = ('b'..='j').map(|user| buy(&shop.url(), &voucher, &user.to_string())).collect();
    assert!(others.iter().all(Answer::is_accepted), "{others:?}");
    shop.world.wait_settled(&[&voucher]);
    assert_eq!(shop.world.assert_audit().vouchers[0].sold, 10);
    assert_eq!(buy(&shop.url(), &voucher, "k").kind, "sold_out");

    for answer in &others[..3] {
        let order_id = OrderId::parse(answer.order_id.as_deref().unwrap()).unwrap();
        let body = RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer };
        shop.world.append_request(1, &voucher_request(&voucher, body));
    }
    wait_until(Duration::from_secs(30), "three units to come back", || {
        shop.world.in_redis(&voucher).is_some_and(|v| v.stock == 3)
    });
    let more = ["purchase-2", "purchase-3"].map(|name| shop.world.launch_service("purchase", name, &[]));
    more.iter().for_each(testkit::Service::wait_ready);
    let urls = [shop.url(), more[0].url(), more[1].url()];
    let again: Vec<Answer> = names(6).enumerate().map(|(i, name)| buy(&urls[i % 3], &voucher, &name)).collect();
    assert_eq!(again.iter().map(Answer::is_accepted).collect::<Vec<_>>(), [true, true, true, false, false, false], "{again:?}");
    shop.world.wait_settled(&[&voucher]);
    assert_eq!(shop.world.assert_audit().vouchers[0].sold, 10);
}
