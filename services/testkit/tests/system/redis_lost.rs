//! Redis loses everything in the middle of a sale.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use domain::{CancelledBy, RequestBody, VoucherId};
use infra::redis::Gate;
use testkit::{block_on, buy, buy_again, buyers, doorbuster, get, order_request, plan, sale, voucher_request, wait_until};

use crate::{Shop, audit_finds::on_database, crowd::Crowd, names};

/// "Within seconds": the warming wait of 3 s and the warden's look each second, on a busy machine.
const SECONDS: Duration = Duration::from_secs(20);

/// For what is only as quick as the machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn flush_all(url: &str) {
    let mut stream = TcpStream::connect(url.trim_start_matches("redis://")).unwrap();
    stream.write_all(b"FLUSHALL\r\n").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

/// What a rejected over-offer gave back can still be bought; then it is over. Says how much that was.
fn sell_out(shop: &Shop, voucher: &VoucherId) -> usize {
    let answers = || (0..).map(|n| buy(&shop.url(), voucher, &format!("late-{n}")));
    let (late, over) = answers().enumerate().find(|(_, answer)| !answer.is_accepted()).unwrap();
    assert_eq!(over.kind, "sold_out");
    shop.world.wait_settled(&[voucher]);
    late
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
    let before = shop.restarts();
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

    let late = sell_out(&shop, &voucher);
    let audit = shop.world.assert_audit();
    assert_eq!(audit.vouchers[0].sold, units, "{late} bought late; {:?}", report.answers);
    assert_eq!(shop.restarts(), before, "nobody had to be started again");
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

/// Rebuilding counters is where units get lost: here two commands ask for it again and again while 500 purchases a second go on, orders are
/// cancelled, and the lane has 10,000 requests before it that Redis knows nothing of.
#[test]
fn no_unit_is_lost_or_sold_twice_where_redis_is_rebuilt_again_and_again_under_a_sale() {
    const BACKLOG: i64 = 10_000;
    const ASKED: usize = 2;
    const SCARCE: i64 = 400;
    let shop = Shop::new();
    let world = &shop.world;
    let (plenty, scarce) = (shop.open(1_000_000), shop.open(SCARCE));
    let requests = || world.ends(&world.connections().topics.requests, 1).high;
    let unseen = (0..BACKLOG).map(|n| {
        let name = format!("unseen-{n}");
        let request = order_request(&plenty, world.order_id(&plenty, &name, None), &name, 1);
        world.codec().encode_request(&request).unwrap()
    });
    let unseen: Vec<_> = unseen.collect();
    let crowds = [Crowd::come(&shop, &plenty, "buyer", 400), Crowd::come(&shop, &scarce, "early", 100)];
    wait_until(PATIENCE, "purchases", || requests() > 500);

    shop.orders.process.pause().unwrap();
    world.append_all(&world.connections().topics.requests, 1, plenty.as_str().as_bytes(), &unseen);
    let lag = block_on(replay::lag(world.connections(), &world.codec())).unwrap();
    shop.orders.process.resume().unwrap();
    assert!(lag.partitions[1].undecided >= BACKLOG, "{lag:?}");
    std::thread::scope(|scope| {
        let again = || {
            for n in 0..ASKED {
                let args = ["rebuild", "redis", plenty.as_str(), scarce.as_str(), "--apply", "--wait", "3m"];
                let (code, text) = doorbuster(world, &args);
                assert!(code == 0 && text.contains("replayed"), "{n}: {code}: {text}");
                let before = requests();
                wait_until(PATIENCE, "purchases through the open gate", || requests() > before + 100);
            }
        };
        let two = [scope.spawn(again), scope.spawn(again)];
        for name in names(200) {
            let order_id = world.order_id(&plenty, &name, None);
            let body = RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer };
            world.append_request(1, &voucher_request(&plenty, body));
        }
        two.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let [bought, _] = crowds.map(Crowd::leave);
    bought.assert_most();
    world.wait_settled(&[&plenty, &scarce]);
    world.assert_audit();
    let late = sell_out(&shop, &scarce);
    world.assert_audit();
    let count = "SELECT count(*) FILTER (WHERE status = 'confirmed'), count(*) FILTER (WHERE status = 'cancelled') FROM orders WHERE voucher_id = $1";
    let count = |voucher: &VoucherId| {
        let row = on_database(world, async |client| client.query_one(count, &[&voucher.as_str()]).await);
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let (kept, cancelled) = count(&plenty);
    println!("{bought}; {cancelled} cancelled; {late} of {SCARCE} were left for late buyers");
    assert_eq!((count(&scarce), shop.restarts()), ((SCARCE, 0), [0; 3]));
    let promised = "SELECT count(*) FROM orders WHERE order_id::text = ANY ($1)";
    let promised = on_database(world, async |client| client.query_one(promised, &[&bought.orders]).await).get::<_, i64>(0);
    assert_eq!(promised, bought.orders.len() as i64, "rows of orders that were promised");
    // A buyer whose last answer was 503 may have one, too.
    assert!(cancelled > 0 && kept + cancelled >= BACKLOG + promised, "{kept} kept, {cancelled} cancelled, {promised} promised");
}
