//! What is acknowledged as committed is not yet in the log for good, and what is being published may fail.

use std::fs;

use infra::{kafka::client_config, postgres::lane::LaneSession};
use publish::LaneProducer;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use testkit::{World, block_on, wait_until, wait_until_async};

use crate::running::{
    Instance, PATIENCE, append_all, assert_tables_equal_the_log, buy, events_up_to, orders_of, position, publish, settled, sql,
};

/// Notes up to where a lane has tried to move its position, also where it is rolled back.
const TRIED: &str = "CREATE SEQUENCE tried;
     CREATE FUNCTION try() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN PERFORM setval('tried', NEW.next_offset); RETURN NEW; END $$;
     CREATE TRIGGER tries BEFORE UPDATE ON lane_positions FOR EACH ROW EXECUTE FUNCTION try()";

/// Begins a transaction on the events, which hides what is committed behind it until it ends.
fn somebody_elses_transaction(world: &World) -> BaseProducer {
    let connections = world.connections();
    let producer: BaseProducer =
        client_config(connections).set("transactional.id", connections.group("somebody")).create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::<(), str>::to(&connections.topics.events).partition(0).payload("")).map_err(|(e, _)| e).unwrap();
    producer.flush(PATIENCE).unwrap();
    producer
}

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
    let producer = somebody_elses_transaction(&world);

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

/// The first of many batches cannot be published, or not be seen when it is, and the second one is decided meanwhile: it must not be committed,
/// since that would overwrite the records of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_not_committed_while_the_one_before_it_is_not_in_the_log() {
    for fault in ["fenced", "hidden"] {
        let world = World::builder().partitions(1).build();
        let recovers = world.crash_points().join("orders.recover");
        fs::create_dir_all(world.crash_points()).unwrap();
        let voucher = publish(&world, 1_000, 1, 0);
        let service = world.start_service("orders", &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")]);
        settled(&world, 0).await;
        sql(&world, TRIED).await;

        // Held up until it has said so, the lane has the first batch in hand and further ones in its queue.
        let mut client = world.postgres().await;
        let lock = client.transaction().await.unwrap();
        lock.execute("SELECT 1 FROM lane_positions WHERE partition = 0 FOR UPDATE", &[]).await.unwrap();
        append_all(&world, 0, &orders_of(&world, &voucher, 0..100));
        wait_until(PATIENCE, "the lane to be held up", || {
            let (_, said) = devstack::http_get(service.admin_port().unwrap(), "/readyz").unwrap_or_default();
            said.contains("partition 0 is held up")
        });
        let mut open = None;
        if fault == "fenced" {
            block_on(async { LaneProducer::start(world.connections(), 0).map(drop) }).unwrap();
        } else {
            open = Some(somebody_elses_transaction(&world));
        }
        fs::write(&recovers, "1 hang").unwrap();
        lock.rollback().await.unwrap();
        wait_until(PATIENCE, "the lane to go back", || !recovers.exists());

        let topic = &world.connections().topics.requests;
        let stored = LaneSession::connect(world.connections(), topic, 0).await.unwrap().position().await.unwrap();
        let tried: i64 = client.query_one("SELECT last_value FROM tried", &[]).await.unwrap().get(0);
        assert!(1 < stored.next_offset && stored.next_offset < tried, "{fault}: {} of {tried}", stored.next_offset);
        let (kept, answered) = (stored.records.iter().map(|record| record.request_offset), world.events(0).len() as i64);
        assert!(kept.clone().eq(answered..stored.next_offset), "{fault}: {:?} from {answered} on", kept.collect::<Vec<_>>());

        if let Some(open) = open {
            open.abort_transaction(PATIENCE).unwrap();
        }
        service.kill().unwrap();
        let events = settled(&world, 0).await;
        assert_eq!(events.len(), 101, "{fault}");
        assert_tables_equal_the_log(&world, &events).await;
        service.wait_ready();
        service.end();
        fs::remove_dir(world.crash_points()).unwrap();
    }
}
