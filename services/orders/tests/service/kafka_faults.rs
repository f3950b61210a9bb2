//! A broker that dies, and one that freezes, while lanes work on it.

use std::time::Duration;

use devstack::kafka::{self, KafkaOptions};
use testkit::{World, wait_until};

use crate::running::{Instance, append_all, assert_tables_equal_the_log, orders_of, position, publish, settled};

const ORDERS: i64 = 1_000;

/// A broker takes some seconds to start, the group and the transactions as long again to go on.
const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_or_freezes_in_the_middle_doubles_and_loses_nothing() {
    let broker = kafka::start(KafkaOptions::default()).unwrap();
    let world = World::builder().partitions(2).kafka(broker.endpoint()).build();
    let vouchers = [publish(&world, ORDERS / 2, 1, 0), publish(&world, ORDERS / 2, 1, 1)];
    for (partition, voucher) in (0..).zip(&vouchers) {
        append_all(&world, partition, &orders_of(&world, voucher, 0..ORDERS as usize));
    }
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")]);
    let progress = async |partition: i32, wanted: i64| {
        testkit::wait_until_async(PATIENCE, "progress", async || position(&world, partition).await >= Some(wanted)).await;
    };
    progress(0, ORDERS / 4).await;
    broker.kill();
    broker.restart().unwrap();
    progress(0, ORDERS / 2).await;
    broker.pause().unwrap();
    wait_until(PATIENCE, "readiness to say so", || !service.readiness().starts_with("ready"));
    broker.resume().unwrap();

    // The lanes are through before anybody asks the broker, which may be without leaders for a moment.
    progress(0, ORDERS + 1).await;
    progress(1, ORDERS + 1).await;
    let mut all = settled(&world, 0).await;
    all.extend(settled(&world, 1).await);
    assert_eq!(all.len() as i64, 2 * ORDERS + 2);
    assert_tables_equal_the_log(&world, &all).await;
    wait_until(PATIENCE, "readiness to come back", || service.readiness().starts_with("ready"));
    service.stop().unwrap();
}
