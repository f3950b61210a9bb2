//! Redis loses everything in the middle of a sale.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use domain::{CancelledBy, RequestBody};
use infra::redis::Gate;
use testkit::{buy, buy_again, buyers, doorbuster, get, plan, sale, voucher_request, wait_until};

use crate::{Shop, names};

/// "Within seconds": the warming wait of 3 s and the warden's look each second, on a busy machine.
const SECONDS: Duration = Duration::from_secs(20);

pub(crate) fn flush_all(url: &str) {
    let mut stream = TcpStream::connect(url.trim_start_matches("redis://")).unwrap();
    stream.write_all(b"FLUSHALL\r\n").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

#[test]
fn nothing_is_oversold_and_the_sale_goes_on_within_seconds_when_redis_is_emptied() {
    let shop = Shop::new();
    let units = 200;
    let voucher = shop.open(units);
    let plan = load::Plan { retries: 12, ..plan(shop.url(), &voucher, Duration::from_secs(8)) };
    let going_on = sale(plan, buyers(names(600)));
    wait_until(Duration::from_secs(30), "the middle of the sale", || {
        shop.world.in_redis(&voucher).is_some_and(|v| (60..150).contains(&(v.sold + v.reserved)))
    });
    let restarts = || [&shop.orders, &shop.compensation, &shop.purchase].map(|s| s.process.restarts());
    let before = restarts();
    flush_all(shop.redis.endpoint());
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

/// Nothing is decided while Redis is rebuilt, so it offers every unit a second time: the lane has the last word. Also: the same buyer
/// orders again under another key, which Redis cannot know any more.
#[test]
fn units_offered_twice_are_sold_once_and_the_others_are_told() {
    let shop = Shop::new();
    let voucher = shop.open(20);
    shop.orders.process.pause().unwrap();
    let bought: Vec<_> = (0..20).map(|i| buy(&shop.url(), &voucher, &format!("first-{i}"))).collect();
    assert!(bought.iter().all(load::Answer::is_accepted), "{bought:?}");
    assert_eq!(buy(&shop.url(), &voucher, "second-0").kind, "sold_out");
    flush_all(shop.redis.endpoint());
    wait_until(SECONDS, "the voucher to be on sale again", || {
        shop.world.in_redis(&voucher).is_some_and(|v| v.gate == Gate::Ready)
    });
    let again = buy_again(&shop.url(), &voucher, "first-0", Some("another wish"));
    let second: Vec<_> = (0..15).map(|i| buy(&shop.url(), &voucher, &format!("second-{i}"))).collect();
    assert!(again.is_accepted() && second.iter().all(load::Answer::is_accepted), "{again:?} {second:?}");
    shop.orders.process.resume().unwrap();
    shop.world.wait_settled(&[&voucher]);

    assert_eq!(shop.world.assert_audit().vouchers[0].sold, 20);
    let fate = |user: &str, answer: &load::Answer| {
        let order = answer.order_id.as_deref().unwrap_or_default();
        let (_, body) = get(&format!("{}/v1/vouchers/{voucher}/orders/{order}", shop.url()), user);
        format!("{} {}", body["status"].as_str().unwrap_or("?"), body["reason"].as_str().unwrap_or("-"))
    };
    for (i, answer) in bought.iter().enumerate() {
        assert_eq!(fate(&format!("first-{i}"), answer), "confirmed -");
    }
    for (i, answer) in second.iter().enumerate() {
        assert_eq!(fate(&format!("second-{i}"), answer), "rejected sold_out");
    }
    assert_eq!(fate("first-0", &again), "rejected limit_reached");
}

#[test]
fn who_asks_for_a_replay_waits_until_the_voucher_is_sold_again_or_is_told_that_it_is_not() {
    let shop = Shop::new();
    let voucher = shop.open(20);
    let bought = (0..10).filter(|n| buy(&shop.url(), &voucher, &format!("buyer-{n}")).is_accepted());
    assert_eq!(bought.count(), 10);
    shop.world.wait_settled(&[&voucher]);
    let before = shop.world.in_redis(&voucher).unwrap();
    let (code, said) = doorbuster(&shop.world, &["rebuild", "redis", "--all"]);
    assert!(code == 0 && said.contains("would: replay"), "{code}: {said}");
    assert_eq!(shop.world.in_redis(&voucher).unwrap().epoch, before.epoch, "a plan changes nothing");

    let replay = || doorbuster(&shop.world, &["rebuild", "redis", "--all", "--apply"]);
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(replay);
        (replay(), other.join().unwrap())
    });
    for (code, said) in [one, other] {
        assert!(code == 0 && said.contains("replayed"), "{code}: {said}");
    }
    let after = shop.world.in_redis(&voucher).unwrap();
    assert_ne!(after.epoch, before.epoch);
    assert_eq!((after.stock, after.sold, after.seq), (before.stock, before.sold, before.seq));
    shop.world.assert_audit();

    shop.compensation.process.pause().unwrap();
    let (code, said) = doorbuster(&shop.world, &["rebuild", "redis", voucher.as_str(), "--apply", "--wait", "1s"]);
    assert!(code == 2 && said.contains("is warming"), "{code}: {said}");
    shop.compensation.process.resume().unwrap();
    wait_until(SECONDS, "the voucher to be on sale again", || {
        shop.world.in_redis(&voucher).is_some_and(|v| v.gate == Gate::Ready)
    });
    let (code, said) = doorbuster(&shop.world, &["rebuild", "redis", "nobody-s", "--apply"]);
    assert!(code == 1 && said.contains("does not have voucher nobody-s"), "{code}: {said}");
}

/// Rebuilding counters is where units get lost: here two commands ask for it again and again under a sale, with orders cancelled and the lanes
/// behind.
#[test]
fn no_unit_is_lost_where_redis_is_rebuilt_again_and_again_under_a_sale() {
    let shop = Shop::new();
    let units = 150;
    let voucher = shop.open(units);
    shop.orders.process.pause().unwrap();
    let plan = load::Plan { retries: 12, ..plan(shop.url(), &voucher, Duration::from_secs(8)) };
    let going_on = sale(plan, buyers(names(300)));
    let before = shop.world.in_redis(&voucher).unwrap().epoch;
    let rebuilds = std::thread::scope(|scope| {
        let again = || {
            let mut asked = 0;
            while !going_on.is_finished() {
                let (code, text) = doorbuster(&shop.world, &["rebuild", "redis", voucher.as_str(), "--apply"]);
                assert_eq!(code, 0, "{text}");
                asked += 1;
                wait_until(SECONDS, "the gate to be open again", || {
                    shop.world.in_redis(&voucher).is_some_and(|v| v.gate == Gate::Ready) || going_on.is_finished()
                });
            }
            asked
        };
        let two = [scope.spawn(again), scope.spawn(again)];
        wait_until(SECONDS, "requests that no lane decides", || {
            shop.world.ends(&shop.world.connections().topics.requests, 1).high > 30
        });
        shop.orders.process.resume().unwrap();
        wait_until(SECONDS, "decisions", || shop.world.events(1).len() > 30);
        for name in names(20) {
            let body = RequestBody::CancellationRequested {
                order_id: shop.world.order_id(&voucher, &name, None),
                by: CancelledBy::Buyer,
            };
            shop.world.append_request(1, &voucher_request(&voucher, body));
        }
        two.map(|thread| thread.join().unwrap())
    });
    going_on.join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    let audit = shop.world.assert_audit();
    let after = shop.world.in_redis(&voucher).unwrap();
    println!("asked {rebuilds:?} times, {} sold", audit.vouchers[0].sold);
    assert!(rebuilds.iter().all(|asked| *asked > 1) && after.epoch != before, "{rebuilds:?}");
    assert!(audit.vouchers[0].sold <= units && (0..=units).contains(&after.stock), "{audit:#?}");
}
