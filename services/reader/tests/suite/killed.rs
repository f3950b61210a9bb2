//! The example, killed again and again while a sale goes on, counts every unit once.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use domain::{CancelledBy, Event, EventBody, RequestBody, VoucherId};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use testkit::{World, block_on, order_request, voucher_request, wait_for, wait_until};

/// Requests of the sale, a quarter of which are cancellations; some 10 ms each.
const REQUESTS: usize = 200;

/// For anything that only a busy machine makes slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Voucher and minute (in milliseconds since 1970) -> units.
type Minutes = BTreeMap<(String, i64), i64>;

fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/this-test-1234 -> target/debug/examples/units_per_minute
    let built = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/units_per_minute");
    assert!(built.is_file(), "the example is built with the tests of its package: {}", built.display());
    built
}

fn command(world: &World, more: &[&str]) -> Command {
    let mut command = Command::new(example());
    command.arg(&world.connections().postgres).args(more).envs(world.env_vars());
    command
}

/// Runs it until all history is counted; gives what it printed.
fn count_all(world: &World, more: &[&str]) -> String {
    let Output { status, stdout, stderr } = command(world, more).arg("once").output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{text}{}", String::from_utf8_lossy(&stderr));
    assert_eq!(text.matches("rebuilt, now live").count(), 1, "{text}");
    text
}

fn by_log<'a>(events: impl Iterator<Item = &'a Event>) -> Minutes {
    let mut minutes = Minutes::new();
    for event in events {
        let units = match &event.body {
            EventBody::OrderConfirmed { quantity, .. } => *quantity,
            EventBody::OrderCancelled { quantity, .. } => -quantity,
            _ => continue,
        };
        let at = event.decided_at.0;
        *minutes.entry((event.voucher_id.as_ref().unwrap().to_string(), at - at % 60_000)).or_default() += units;
    }
    minutes
}

/// What the example's table says; nothing where it was not made yet.
fn by_table(world: &World) -> Minutes {
    block_on(async {
        let sql =
            "SELECT voucher_id, (extract(epoch FROM minute) * 1000)::bigint, units FROM units_per_minute.units_sold_per_minute";
        let rows = world.postgres().await.query(sql, &[]).await.unwrap_or_default();
        rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect()
    })
}

fn forget(world: &World) {
    block_on(async { world.postgres().await.batch_execute("DROP SCHEMA units_per_minute CASCADE").await.unwrap() });
}

/// Orders of one or two units; every fourth request takes an earlier one back.
fn sell(world: &World, vouchers: &[(VoucherId, i32)]) {
    for n in 0..REQUESTS {
        let (voucher, partition) = &vouchers[n % vouchers.len()];
        let order = |n: usize| world.order_id(voucher, &format!("user-{n}"), None);
        let request = if n % 4 == 3 {
            let body = RequestBody::CancellationRequested { order_id: order(n - 2), by: CancelledBy::Buyer };
            voucher_request(voucher, body)
        } else {
            order_request(voucher, order(n), &format!("user-{n}"), 1 + i64::from(n % 3 == 0))
        };
        world.append_request(*partition, &request);
    }
}

/// Asks that the vouchers be published, for the first time or again, and waits for the answers: what was asked for before is decided then.
fn settled(world: &World, vouchers: &[(VoucherId, i32)]) {
    for (voucher, partition) in vouchers {
        let published = RequestBody::VoucherPublished(world.terms(10_000, 2, *partition));
        let offset = world.append_request(*partition, &voucher_request(voucher, published));
        world.event_of(*partition, offset);
    }
}

/// By partition, with their offsets.
fn events(world: &World) -> Vec<Vec<(Event, i64)>> {
    (0..world.partitions()).map(|partition| world.events(partition)).collect()
}

#[test]
fn killed_at_any_moment_it_counts_every_unit_once() {
    let seed: u64 = std::env::var("DOORBUSTER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DOORBUSTER_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    // Nothing ever comes to the third partition.
    let world = World::builder().partitions(3).build();
    let _orders = world.start_service("orders", &[]);
    let vouchers = [(world.voucher_id(), 0), (world.voucher_id(), 1)];
    settled(&world, &vouchers);

    let total = || by_table(&world).values().sum::<i64>();
    let mut counted = vec![0];
    thread::scope(|scope| {
        let sale = scope.spawn(|| sell(&world, &vouchers));
        while !sale.is_finished() {
            let mut running = command(&world, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Every other run dies only after it has counted something, however busy the machine is.
            if counted.len() % 2 == 0 {
                let before = counted.iter().max();
                wait_until(PATIENCE, "something to be counted", || sale.is_finished() || Some(&total()) > before);
            }
            // A random moment is not a condition to wait for.
            thread::sleep(Duration::from_millis(random.random_range(0..1_200)));
            running.kill().unwrap();
            running.wait().unwrap();
            counted.push(total());
        }
    });
    settled(&world, &vouchers);
    let logged = events(&world);
    let all = by_log(logged.iter().flatten().map(|(event, _)| event));
    assert!(all.values().sum::<i64>() > 100, "{all:?}");
    count_all(&world, &[]);
    assert_eq!(by_table(&world), all, "killed when it had counted {counted:?}");
    assert!(counted.iter().any(|units| (1..all.values().sum()).contains(units)), "killed when it had counted {counted:?}");
    let text = count_all(&world, &[]);
    assert!(text.contains("\n0 events"), "{text}");
    assert_eq!(by_table(&world), all);

    one_of_two_runs_goes_on(&world, &vouchers);
    it_begins_where_it_is_told(&world);
}

/// The other one fails with its next batch, and leaves nothing behind.
fn one_of_two_runs_goes_on(world: &World, vouchers: &[(VoucherId, i32)]) {
    let mut two = [(); 2].map(|()| command(world, &[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut more = 0;
    let failed = wait_for(PATIENCE, "one run to fail", || {
        more += 1;
        let (voucher, partition) = &vouchers[0];
        let user = format!("late-{more}");
        world.append_request(*partition, &order_request(voucher, world.order_id(voucher, &user, None), &user, 1));
        two.iter_mut().position(|run| run.try_wait().unwrap().is_some())
    });
    let [mut one, mut other] = two;
    let (gone, alive) = if failed == 0 { (one, &mut other) } else { (other, &mut one) };
    alive.kill().unwrap();
    alive.wait().unwrap();
    let why = String::from_utf8(gone.wait_with_output().unwrap().stderr).unwrap();
    assert!(why.contains("another run has moved on"), "{why}");
    settled(world, vouchers);
    count_all(world, &[]);
    let logged = events(world);
    assert_eq!(by_table(world), by_log(logged.iter().flatten().map(|(event, _)| event)));
}

fn it_begins_where_it_is_told(world: &World) {
    let logged = events(world);
    forget(world);
    let from = logged[1][logged[1].len() / 2].1;
    count_all(world, &[&format!("from=1:{from}")]);
    assert_eq!(
        by_table(world),
        by_log(logged.iter().flatten().filter(|(e, at)| e.partition != 1 || *at >= from).map(|(e, _)| e))
    );

    forget(world);
    let records = |partition| world.records(&world.connections().topics.events, partition);
    let instant = records(0)[logged[0].len() / 2].timestamp;
    count_all(world, &[&format!("from={}", instant.0)]);
    let since = |partition: i32| {
        let late = records(partition).into_iter().map(move |record| record.timestamp >= instant);
        logged[usize::try_from(partition).unwrap()].iter().zip(late).filter(|(_, late)| *late).map(|((event, _), _)| event)
    };
    assert_eq!(by_table(world), by_log(since(0).chain(since(1))));
}
