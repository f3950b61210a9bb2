//! Redis loses everything in the middle of a sale.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use devstack::redis::{self, RedisOptions};
use infra::redis::Gate;
use testkit::{World, buy, buyers, plan, sale, wait_until};

use crate::{Shop, names};

/// "Within seconds": the warming wait of 3 s and the warden's look each second, on a busy machine.
const SECONDS: Duration = Duration::from_secs(20);

fn flush_all(url: &str) {
    let mut stream = TcpStream::connect(url.trim_start_matches("redis://")).unwrap();
    stream.write_all(b"FLUSHALL\r\n").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

#[test]
fn nothing_is_oversold_and_the_sale_goes_on_within_seconds_when_redis_is_emptied() {
    let own = redis::start(RedisOptions::default()).unwrap();
    let shop = Shop::with(|| World::builder().redis(own.endpoint()).build(), &[]);
    let units = 200;
    let voucher = shop.open(units);
    let plan = load::Plan { retries: 12, ..plan(shop.url(), &voucher, Duration::from_secs(8)) };
    let going_on = sale(plan, buyers(names(600)));
    wait_until(Duration::from_secs(30), "the middle of the sale", || {
        shop.world.in_redis(&voucher).is_some_and(|v| (60..150).contains(&(v.sold + v.reserved)))
    });
    let restarts = || [&shop.orders, &shop.compensation, &shop.purchase].map(|s| s.process.restarts());
    let before = restarts();
    flush_all(own.endpoint());
    let emptied = Instant::now();
    wait_until(SECONDS, "the voucher to be on sale again", || {
        shop.world.in_redis(&voucher).is_some_and(|v| v.gate == Gate::Ready && v.seq > 1)
    });
    println!("on sale again after {:?}", emptied.elapsed());
    let report = going_on.join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    let sold = shop.world.assert_audit().vouchers[0].sold;
    assert!(sold <= units, "{sold} sold");

    // What a rejected over-offer gave back can still be bought; then it is over.
    let mut late = 0;
    let over = loop {
        let answer = buy(&shop.url(), &voucher, &format!("late-{late}"));
        if !answer.is_accepted() {
            break answer;
        }
        late += 1;
    };
    assert_eq!(over.kind, "sold_out");
    shop.world.wait_settled(&[&voucher]);
    let audit = shop.world.assert_audit();
    assert_eq!(audit.vouchers[0].sold, units, "{late} bought late; {:?}", report.answers);
    assert_eq!(restarts(), before, "nobody had to be started again");
    assert!(report.visits.iter().all(|v| v.orders.len() <= 1));
}
