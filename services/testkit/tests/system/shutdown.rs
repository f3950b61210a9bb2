//! SIGTERM, as at every deploy: under load, and in a bad hour.

use std::{thread, time::Duration};

use devstack::kafka::{ClusterOptions, start_cluster};
use testkit::{Mode, Proxy, buy, buyers, plan, sale, wait_until};

use crate::{QUICK_SWEEPER, Shop, names};

#[test]
fn each_service_ends_with_0_under_load_and_loses_nothing() {
    let shop = Shop::new();
    let units = 400;
    let voucher = shop.open(units);
    let second = |name: &str, more| {
        let service = shop.world.launch_service(name, &format!("{name}-2"), more);
        service.wait_ready();
        service
    };
    let purchase = second("purchase", &[]);
    let plan = load::Plan {
        urls: vec![shop.url(), purchase.url()],
        retries: 12,
        ..plan(String::new(), &voucher, Duration::from_secs(10))
    };
    let going_on = sale(plan, buyers(names(900)));
    let taken = |units| shop.world.in_redis(&voucher).is_some_and(|v| v.sold + v.reserved > units);
    wait_until(Duration::from_secs(30), "the sale to be under way", || taken(50));
    shop.purchase.end();
    wait_until(Duration::from_secs(30), "the sale to go on without the first purchase service", || taken(120));
    let orders = second("orders", &[]);
    shop.orders.end();
    let compensation = second("compensation", &QUICK_SWEEPER);
    shop.compensation.end();
    let report = going_on.join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    let audit = shop.world.assert_audit();
    assert_eq!(audit.vouchers[0].sold, units, "{:?}", report.answers);
    assert!(report.visits.iter().all(|v| v.orders.len() <= 1));
    [purchase, orders, compensation].iter().for_each(testkit::Service::end);
}

#[test]
fn each_service_ends_in_time_while_kafka_says_nothing() {
    let proxy = Proxy::start().unwrap();
    let advertised = Some(vec![proxy.port()]);
    let brokers = start_cluster(ClusterOptions { brokers: 1, advertised, ..ClusterOptions::default() }).unwrap();
    proxy.set_target(brokers[0].port());
    let shop = Shop::on(|builder| builder.kafka(&format!("127.0.0.1:{}", proxy.port())).build(), &[]);
    let voucher = shop.open(10);
    assert_eq!(buy(&shop.url(), &voucher, "ann").status, 202);
    shop.world.wait_settled(&[&voucher]);
    proxy.set(Mode::Hold);
    // Each within its own deadlines, or it is killed and the test fails.
    thread::scope(|scope| {
        for service in [&shop.purchase, &shop.orders, &shop.compensation] {
            scope.spawn(|| service.end());
        }
    });
    proxy.set(Mode::Open);
}
