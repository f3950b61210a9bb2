//! kill -9 of each service in the middle of a sale.

use std::time::Duration;

use devstack::kafka::{self, KafkaOptions};
use testkit::{Service, buyers, plan, sale, wait_until};

use crate::{Shop, names};

fn killed_in_the_middle(which: impl Fn(&Shop) -> &Service) {
    let shop = Shop::new();
    let units = 250;
    let voucher = shop.open(units);
    let plan = load::Plan { retries: 12, double_clicks: 0.1, ..plan(shop.url(), &voucher, Duration::from_secs(4)) };
    let going_on = sale(plan, buyers(names(500)));
    let under_way = || shop.world.in_redis(&voucher).is_some_and(|v| v.sold + v.reserved > units / 4);
    wait_until(Duration::from_secs(30), "the sale to be under way", under_way);
    which(&shop).crash();
    let report = going_on.join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    let audit = shop.world.assert_audit();
    assert_eq!(audit.vouchers[0].sold, units, "{:?}", report.answers);
    assert_eq!(which(&shop).process.restarts(), 1);
    let events = shop.world.events(1);
    for visit in report.visits.iter().filter(|v| !v.orders.is_empty()) {
        assert_eq!(visit.orders.len(), 1, "{visit:?}");
        let decided = events.iter().filter(|(event, _)| {
            matches!(event.body.name(), "OrderConfirmed" | "OrderRejected")
                && event.body.order_id().is_some_and(|id| id.to_string() == visit.orders[0])
        });
        assert_eq!(decided.count(), 1, "a 202 has exactly one fate: {visit:?}");
    }
}

#[test]
fn nothing_is_lost_or_sold_twice_when_purchase_is_killed() {
    killed_in_the_middle(|shop| &shop.purchase);
}

#[test]
fn nothing_is_lost_or_sold_twice_when_orders_is_killed() {
    killed_in_the_middle(|shop| &shop.orders);
}

#[test]
fn nothing_is_lost_or_sold_twice_when_compensation_is_killed() {
    killed_in_the_middle(|shop| &shop.compensation);
}

/// While the broker stands still nothing is acknowledged, and of the requests only the first few, in flight already, can still arrive.
#[test]
fn what_a_killed_purchase_reserved_but_never_published_is_published_for_it() {
    let own = kafka::start(KafkaOptions::default()).unwrap();
    let shop = Shop::on(|builder| builder.kafka(own.endpoint()).build(), &[]);
    let voucher = shop.open(40);
    own.pause().unwrap();
    let plan = load::Plan { timeout: Duration::from_secs(5), ..plan(shop.url(), &voucher, Duration::from_secs(1)) };
    let going_on = sale(plan, buyers(names(40)));
    wait_until(Duration::from_secs(30), "all units to be reserved", || {
        shop.world.in_redis(&voucher).is_some_and(|v| v.reserved == 40)
    });
    shop.purchase.process.kill().unwrap();
    own.resume().unwrap();
    let report = going_on.join().unwrap();
    assert_eq!(report.accepted_buyers(), 0, "{:?}", report.answers);
    shop.purchase.wait_ready();
    shop.world.wait_settled(&[&voucher]);
    assert_eq!(shop.world.assert_audit().vouchers[0].sold, 40);
    let codec = shop.world.codec();
    let requests = shop.world.records(&shop.world.connections().topics.requests, 1);
    let actors = requests.iter().map(|record| codec.decode_request(&record.payload).unwrap().actor);
    let swept = actors.filter(|actor| actor == "sweeper").count();
    println!("{swept} of 40 reservations were published by the sweeper");
    assert!(swept > 0);
}
