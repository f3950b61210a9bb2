//! Two processes, of which now one, now the other freezes in the middle of its work (SIGSTOP), loses its partitions and wakes up.

use testkit::{Service, World, wait_until};

use crate::running::{PATIENCE, append_all, assert_tables_equal_the_log, orders_of, publish, settled};

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_process_that_wakes_up_doubles_and_loses_nothing() {
    let world = World::new();
    let vouchers = [publish(&world, 10_000, 1, 0), publish(&world, 10_000, 1, 1)];
    let small = [("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")];
    let processes = ["orders-a", "orders-b"].map(|name| world.launch_service("orders", name, &small));
    processes.iter().for_each(Service::wait_ready);
    let mut users = 0;
    for frozen in [&processes[0], &processes[1], &processes[0]] {
        for (partition, voucher) in (0..).zip(&vouchers) {
            append_all(&world, partition, &orders_of(&world, voucher, users..users + 500));
        }
        users += 500;
        let had = [world.events(0).len(), world.events(1).len()];
        let is_done = |partition: usize| world.events(partition as i32).len() > had[partition].min(users - 20);
        wait_until(PATIENCE, "progress on both partitions", || is_done(0) && is_done(1));
        frozen.process.pause().unwrap();
        for partition in [0, 1] {
            assert_eq!(settled(&world, partition).await.len(), users + 1);
        }
        // It wakes up in the middle of what it was doing, with its batch, its transaction and its belief that the partition is its own.
        frozen.process.resume().unwrap();
        frozen.wait_ready();
    }
    let mut all = settled(&world, 0).await;
    all.extend(settled(&world, 1).await);
    assert_eq!(all.len(), 2 * (users + 1));
    assert_tables_equal_the_log(&world, &all).await;
    assert!(processes.iter().all(|p| p.process.restarts() == 0), "no process was ended by its watchdog");
}
