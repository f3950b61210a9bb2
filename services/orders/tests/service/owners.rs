//! Partitions that move, instances that come and go, servers that hold a lane up.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use domain::{EventBody, RequestBody};
use testkit::{World, voucher_request, wait_until};

use crate::running::{
    Instance, PATIENCE, append_all, assert_tables_equal_the_log, buy, events_up_to, orders_of, publish, settled,
};

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_move_both_ways_under_load_and_nothing_is_doubled_or_missing() {
    const PARTITIONS: i32 = 4;
    let world = World::builder().partitions(PARTITIONS).build();
    let vouchers: Vec<_> = (0..PARTITIONS).map(|p| publish(&world, 1_000, 1, p)).collect();
    let small = [("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")];
    let first = Instance::start(&world, &small);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // However this ends: the scope waits for its threads.
        let over = SetOnDrop(&is_over);
        scope.spawn(|| {
            let mut user = 0;
            while !is_over.load(Ordering::SeqCst) {
                for (partition, voucher) in (0..).zip(&vouchers) {
                    append_all(&world, partition, &orders_of(&world, voucher, user..user + 50));
                }
                user += 50;
            }
        });
        let owns = |instance: &Instance| instance.metrics().matches("doorbuster_orders_lag_records{").count();
        let second = Instance::start(&world, &small);
        wait_until(PATIENCE, "both to own two partitions", || owns(&first) == 2 && owns(&second) == 2);
        first.stop().unwrap();
        wait_until(PATIENCE, "the second to own all", || owns(&second) == 4);
        let third = Instance::start(&world, &small);
        wait_until(PATIENCE, "both to own two partitions again", || owns(&second) == 2 && owns(&third) == 2);
        second.stop().unwrap();
        wait_until(PATIENCE, "the third to own all", || owns(&third) == 4);
        drop(over);
        third
    });
    let _last = Instance::start(&world, &small);
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
        all.extend(settled(&world, partition).await);
    }
    assert_tables_equal_the_log(&world, &all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_with_work_in_flight_loses_and_doubles_nothing() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 500, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..1_000));
    for _ in 0..5 {
        let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "20")]);
        let had = world.events(0).len();
        wait_until(PATIENCE, "some progress", || world.events(0).len() > had.min(990));
        service.stop().unwrap();
    }
    let _service = Instance::start(&world, &[]);
    let events = settled(&world, 0).await;
    assert_eq!(events.iter().filter(|e| matches!(e.body, EventBody::OrderConfirmed { .. })).count(), 500);
    assert_tables_equal_the_log(&world, &events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_is_held_up_pauses_its_partition_and_no_other() {
    let world = World::new();
    let (held, free) = (publish(&world, 10_000, 1, 0), publish(&world, 10, 1, 1));
    let bounds = [("DOORBUSTER_ORDERS_BATCH_RECORDS", "50"), ("DOORBUSTER_ORDERS_QUEUE_BATCHES", "1")];
    let service = Instance::start(&world, &bounds);
    settled(&world, 0).await;

    let mut client = world.postgres().await;
    let lock = client.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM lane_positions WHERE partition = 0 FOR UPDATE", &[]).await.unwrap();
    append_all(&world, 0, &orders_of(&world, &held, 0..3_000));
    wait_until(PATIENCE, "readiness to say what holds the lane up", || {
        service.readiness().contains("partition 0 is held up") && service.readiness().contains("55P03")
    });
    events_up_to(&world, 1, buy(&world, &free, "ann", 1) + 1);
    let lag = |metrics: &str| metrics.contains("doorbuster_orders_lag_records{partition=\"0\"} 3000");
    wait_until(PATIENCE, "the lag to be told", || lag(&service.metrics()));

    lock.rollback().await.unwrap();
    let events = settled(&world, 0).await;
    assert_eq!(events.len(), 3_001);
    wait_until(PATIENCE, "readiness to come back", || service.readiness().starts_with("ready"));
    service.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voucher_published_on_two_partitions_at_once_opens_on_one() {
    let world = World::new();
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "1")]);
    settled(&world, 0).await;
    let vouchers: Vec<_> = (0..30).map(|_| world.voucher_id()).collect();
    let published = |partition: i32| -> Vec<_> {
        let body = || RequestBody::VoucherPublished(world.terms(5, 1, partition));
        vouchers.iter().map(|voucher| voucher_request(voucher, body())).collect()
    };
    thread::scope(|scope| {
        for partition in [0, 1] {
            let (world, requests) = (&world, published(partition));
            scope.spawn(move || append_all(world, partition, &requests));
        }
    });
    let mut all = settled(&world, 0).await;
    all.extend(settled(&world, 1).await);
    for voucher in &vouchers {
        let of_it: Vec<_> = all.iter().filter(|e| e.voucher_id.as_ref() == Some(voucher)).collect();
        let opened = of_it.iter().filter(|e| matches!(e.body, EventBody::VoucherOpened(_))).count();
        assert_eq!((of_it.len(), opened), (2, 1), "{of_it:?}");
        assert!(of_it.iter().all(|e| e.voucher_seq == i64::from(matches!(e.body, EventBody::VoucherOpened(_)))));
    }
    assert_tables_equal_the_log(&world, &all).await;
    assert!(service.readiness().starts_with("ready"), "{}", service.readiness());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_work_says_why_in_one_line() {
    let world = World::builder().partitions(1).build();
    let failure = |more: &[(&str, &str)]| {
        let vars = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env = infra::config::Env::of(world.env_vars().into_iter().chain(vars));
        let stop = infra::shutdown::CancellationToken::new();
        let run = async move { tokio::time::timeout(Duration::from_secs(30), orders::run(&env, stop)).await };
        async move {
            let failure = format!("{:#}", run.await.expect("it fails at once").expect_err("it fails"));
            assert!(!failure.contains('\n'), "{failure}");
            failure
        }
    };
    let no_topics = failure(&[("DOORBUSTER_TOPIC_PREFIX", "nobody-made-these-")]).await;
    assert!(no_topics.contains("doorbuster topics apply"), "{no_topics}");
    let unmigrated = world.connections().postgres.rsplit_once('/').map(|(server, _)| format!("{server}/postgres")).unwrap();
    let no_tables = failure(&[("DOORBUSTER_POSTGRES", &unmigrated)]).await;
    assert!(no_tables.contains("doorbuster migrate"), "{no_tables}");
    let bad_number = failure(&[("DOORBUSTER_ORDERS_BATCH_RECORDS", "many")]).await;
    assert!(bad_number.contains("DOORBUSTER_ORDERS_BATCH_RECORDS"), "{bad_number}");
}
