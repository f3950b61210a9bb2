//! What holds one partition up, for long or by sheer load, costs that partition time and no other anything.

use std::time::{Duration, Instant};

use testkit::{Mode, Proxy, World, wait_until};

use crate::running::{
    Instance, PATIENCE, append_all, assert_tables_equal_the_log, events_up_to, orders_of, position, publish, settled,
};

/// A world's session time-out is 6 s: longer than that, and a consumer that did not poll would lose its partitions.
const LONGER_THAN_THE_SESSION: Duration = Duration::from_secs(8);

/// Postgres behind a proxy that goes silent, then a lock on the orders themselves: the lane says that it is held up, stays in its group
/// with its partitions, and goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_waits_for_postgres_longer_than_a_session_goes_on_by_itself() {
    let world = World::builder().partitions(1).build();
    let (server, database) = world.connections().postgres.rsplit_once('/').unwrap();
    let (host, port) = server.rsplit_once(':').unwrap();
    let proxy = Proxy::to(port.parse().unwrap()).unwrap();
    let proxied = format!("{host}:{}/{database}", proxy.port());
    let vars = [("DOORBUSTER_POSTGRES", proxied.as_str()), ("DOORBUSTER_ORDERS_RETRY_MAX_MS", "100")];
    let voucher = publish(&world, 1_000, 1, 0);
    let service = Instance::start(&world, &vars);
    let mut last = settled(&world, 0).await.len() as i64;

    for fault in ["silent", "locked"] {
        let mut client = world.postgres().await;
        let lock = match fault {
            "silent" => {
                proxy.set(Mode::Silent);
                None
            }
            _ => {
                let lock = client.transaction().await.unwrap();
                lock.batch_execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE").await.unwrap();
                Some(lock)
            }
        };
        let began = Instant::now();
        let users = last as usize..last as usize + 100;
        append_all(&world, 0, &orders_of(&world, &voucher, users));
        wait_until(PATIENCE, fault, || service.readiness().contains("partition 0 is held up"));
        wait_until(PATIENCE, "the session to be over", || {
            assert!(service.readiness().contains("partition 0 is held up"), "{}", service.readiness());
            began.elapsed() > LONGER_THAN_THE_SESSION
        });
        assert_eq!(world.events(0).len() as i64, last, "nothing is published that Postgres does not have");
        match lock {
            Some(lock) => lock.rollback().await.unwrap(),
            None => proxy.set(Mode::Open),
        }
        last += 100;
        let events = events_up_to(&world, 0, last);
        assert_tables_equal_the_log(&world, &events).await;
        wait_until(PATIENCE, "readiness to come back", || service.readiness().starts_with("ready"));
    }
    assert!(!service.has_ended());
    service.stop().unwrap();
}

/// One voucher takes nearly all of the load. Measured in requests, not in time: the others' are decided while most of its own still wait,
/// and the metrics say which partition that is.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_voucher_falls_behind_alone_and_the_lag_names_its_partition() {
    const HOT: i64 = 4_000;
    let world = World::new();
    let hot = publish(&world, HOT, 1, 0);
    let others: Vec<_> = (0..19).map(|_| publish(&world, 100, 1, 1)).collect();
    let bounds = [("DOORBUSTER_ORDERS_BATCH_RECORDS", "10"), ("DOORBUSTER_ORDERS_QUEUE_BATCHES", "1")];
    let service = Instance::start(&world, &bounds);
    for partition in [0, 1] {
        settled(&world, partition).await;
    }
    append_all(&world, 0, &orders_of(&world, &hot, 0..HOT as usize));
    let cool: Vec<_> = others.iter().flat_map(|voucher| orders_of(&world, voucher, 0..10)).collect();
    append_all(&world, 1, &cool);
    let end = world.ends(&world.connections().topics.requests, 1).high;
    let lag_of = |metrics: &str, partition: i32| -> Option<i64> {
        let name = format!("doorbuster_orders_lag_records{{partition=\"{partition}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
    };
    let mut seen = Vec::new();
    testkit::wait_until_async(PATIENCE, "the others to be decided", async || {
        let metrics = service.metrics();
        seen.push((lag_of(&metrics, 0), lag_of(&metrics, 1)));
        position(&world, 1).await == Some(end)
    })
    .await;
    let left = HOT + 1 - position(&world, 0).await.unwrap();
    assert!(left > HOT / 2, "only {left} of the hot voucher's {HOT} requests were left when the others were done");
    wait_until(PATIENCE, "the lag of both partitions to be told", || {
        let metrics = service.metrics();
        seen.push((lag_of(&metrics, 0), lag_of(&metrics, 1)));
        matches!(seen.last(), Some((Some(hot), Some(0))) if *hot > HOT / 4)
    });
    let mut all = settled(&world, 0).await;
    all.extend(settled(&world, 1).await);
    assert_tables_equal_the_log(&world, &all).await;
    wait_until(PATIENCE, "the lag to be gone", || lag_of(&service.metrics(), 0) == Some(0));
    service.stop().unwrap();
}
