//! A sale goes on when the primary of Redis dies and a sentinel makes the replica the primary.

use std::time::Duration;

use devstack::redis::{RedisOptions, start, start_sentinel};
use testkit::{Service, World, buyers, plan, sale, wait_until};

/// For a sentinel to learn of the replica (it asks every 10 s), or to replace a dead primary, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks one server one thing; gives the answer's lines.
fn ask(address: &str, command: &[&str]) -> Vec<String> {
    let Ok(mut connection) = redis::Client::open(address).and_then(|c| c.get_connection_with_timeout(PATIENCE)) else {
        return Vec::new();
    };
    let answer: redis::RedisResult<redis::Value> = redis::cmd(command[0]).arg(&command[1..]).query(&mut connection);
    answer.map_or(Vec::new(), |value| format!("{value:?}").replace("\\r\\n", "\n").lines().map(str::to_owned).collect())
}

fn says(address: &str, command: &[&str], text: &str) -> bool {
    ask(address, command).iter().any(|line| line.contains(text))
}

#[test]
fn a_sale_goes_on_with_the_primary_that_the_sentinel_chose() {
    let primary = start(RedisOptions::default()).expect("Redis starts");
    let port = |server: &devstack::Server| server.port().to_string();
    let args = ["--replicaof", "127.0.0.1", &port(&primary)].map(str::to_owned).to_vec();
    let replica = start(RedisOptions { args, ..RedisOptions::default() }).expect("a replica starts");
    wait_until(PATIENCE, "the replica", || says(primary.endpoint(), &["INFO", "replication"], "state=online"));
    let sentinel = start_sentinel(&primary, "shop").expect("a sentinel starts");
    let sentinel_address = sentinel.endpoint().replace("redis+sentinel", "redis").replace("/shop", "");
    wait_until(PATIENCE, "the sentinel to know it", || {
        says(&sentinel_address, &["SENTINEL", "REPLICAS", "shop"], &port(&replica))
    });

    let world = World::builder().redis(sentinel.endpoint()).build();
    let services = ["orders", "compensation", "purchase"].map(|name| world.launch_service(name, name, &[]));
    services.iter().for_each(Service::wait_ready);
    let purchase = &services[2];
    let voucher = world.voucher_id();
    world.open(&voucher, world.terms(20, 1, 1));
    let come = |who: &str| {
        let names = (0..15).map(|n| format!("{who}-{n}"));
        let plan = load::Plan { retries: 50, ..plan(purchase.url(), &voucher, Duration::from_secs(1)) };
        sale(plan, buyers(names)).join().expect("the buyers come")
    };
    assert_eq!(come("before").accepted_buyers(), 15);

    primary.kill();
    wait_until(PATIENCE, "another primary", || says(replica.endpoint(), &["INFO", "replication"], "role:master"));
    wait_until(PATIENCE, "purchases to be possible", || purchase.is_ready());
    assert_eq!(come("after").accepted_buyers(), 5, "what was left");
    world.wait_settled(&[&voucher]);
    let audit = world.assert_audit();
    assert_eq!((audit.vouchers[0].sold, audit.vouchers[0].redis_stock), (20, Some(0)));
}
