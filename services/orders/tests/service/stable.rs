//! What is acknowledged as committed is not yet in the log for good.

use infra::kafka::client_config;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use testkit::{World, wait_until_async};

use crate::running::{Instance, PATIENCE, assert_tables_equal_the_log, buy, events_up_to, position, publish, settled};

/// Somebody else's transaction is open on the events, so that what the lane commits behind it cannot be seen, as where a broker dies before
/// it has written the markers of a commit: the records of that batch must stay in the position row, and no other batch be decided.
#[tokio::test(flavor = "multi_thread")]
async fn stored_records_stay_until_the_log_is_stable() {
    let world = World::new();
    let [voucher, other] = [publish(&world, 10, 1, 0), publish(&world, 1_000, 1, 1)];
    let service = Instance::start(&world, &[]);
    for partition in [0, 1] {
        settled(&world, partition).await;
    }
    let connections = world.connections();
    let producer: BaseProducer =
        client_config(connections).set("transactional.id", connections.group("somebody")).create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::<(), str>::to(&connections.topics.events).partition(0).payload("")).map_err(|(e, _)| e).unwrap();
    producer.flush(PATIENCE).unwrap();

    let first = buy(&world, &voucher, "first", 0);
    wait_until_async(PATIENCE, "the first to be decided", async || position(&world, 0).await == Some(first + 1)).await;
    let second = buy(&world, &voucher, "second", 0);
    // Of the other partition, many are decided one after another meanwhile.
    for n in 0..20 {
        let offset = buy(&world, &other, &format!("sentinel-{n}"), 1);
        world.event_of(1, offset);
        assert_eq!(position(&world, 0).await, Some(first + 1), "the second waits");
    }
    producer.abort_transaction(PATIENCE).unwrap();
    let mut events = events_up_to(&world, 0, second + 1);
    events.extend(settled(&world, 1).await);
    assert_tables_equal_the_log(&world, &events).await;
    service.stop().unwrap();
}
