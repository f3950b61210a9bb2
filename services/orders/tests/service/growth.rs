//! Partitions added in the middle of a sale.

use infra::kafka::{apply_topics, check_topics, plan_topics};
use testkit::World;

use crate::running::{Instance, append_all, assert_tables_equal_the_log, buy, events_up_to, orders_of, publish, settled};

/// A voucher stays where it was published, whatever its id would hash to among more partitions; nothing unread is lost, nothing overtakes,
/// and the new partitions sell as soon as somebody owns them.
#[tokio::test(flavor = "multi_thread")]
async fn more_partitions_in_the_middle_of_a_sale_move_no_voucher_and_lose_nothing() {
    let world = World::new();
    let vouchers = [publish(&world, 2_000, 1, 0), publish(&world, 2_000, 1, 1)];
    let small = [("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")];
    let service = Instance::start(&world, &small);
    for (partition, voucher) in (0..).zip(&vouchers) {
        append_all(&world, partition, &orders_of(&world, voucher, 0..1_000));
    }
    assert!(world.events(0).len() < 1_001, "all was decided before there were more partitions");
    let plan = plan_topics(world.connections(), Some(5)).unwrap();
    apply_topics(world.connections(), &plan).unwrap();
    assert_eq!(check_topics(world.connections()).unwrap(), 5);
    for (partition, voucher) in (0..).zip(&vouchers) {
        append_all(&world, partition, &orders_of(&world, voucher, 1_000..1_100));
    }
    let new = publish(&world, 3, 1, 4);
    buy(&world, &new, "ann", 4);
    for partition in [0, 1] {
        assert_eq!(settled(&world, partition).await.len(), 1_101);
    }
    service.stop().unwrap();

    // Who starts now knows all five.
    let service = Instance::start(&world, &small);
    let mut all = events_up_to(&world, 4, buy(&world, &new, "ben", 4) + 1);
    assert_eq!(all.iter().map(|e| e.body.name()).collect::<Vec<_>>(), ["VoucherOpened", "OrderConfirmed", "OrderConfirmed"]);
    for (partition, voucher) in (0..).zip(&vouchers) {
        all.extend(events_up_to(&world, partition, buy(&world, voucher, "late", partition) + 1));
    }
    assert_tables_equal_the_log(&world, &all).await;
    assert!(service.readiness().starts_with("ready"), "{}", service.readiness());
    service.stop().unwrap();
}
