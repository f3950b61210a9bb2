//! kill -9 of each service in the middle of a sale.

use std::time::Duration;

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
