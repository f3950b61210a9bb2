//! Postgres and the log disagree: what recovery does, and what it refuses to do.

use std::ops::ControlFlow;

use domain::{Event, LoggedRequest, decide};
use infra::{
    kafka::{PartitionReader, client_config},
    postgres::{
        OutRecord,
        lane::{LaneSession, Wanted},
    },
};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer},
};
use testkit::{World, wait_until};

use crate::running::{
    Instance, PATIENCE, append_all, assert_one_event_a_request, assert_tables_equal_the_log, buy, events_up_to, orders_of,
    position, publish, settled, sql,
};

/// Decides requests `from..to` of partition 0 and commits them with the records to send, as a lane does that dies before it publishes.
async fn commit_without_publishing(world: &World, from: i64, to: i64) -> Vec<Event> {
    let (connections, codec) = (world.connections(), world.codec());
    let mut requests = Vec::new();
    let mut log = PartitionReader::open(connections, &connections.topics.requests, 0).unwrap();
    log.read(from, to, &mut |record| {
        let request = codec.decode_request(&record.payload).ok();
        requests.push(LoggedRequest { partition: 0, offset: record.offset, appended_at: record.timestamp, request });
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut session = LaneSession::connect(connections, &connections.topics.requests, 0).await.unwrap();
    let transaction = session.begin().await.unwrap();
    let (found, mut facts) = transaction.lock_and_read(&Wanted::by_requests(&requests)).await.unwrap();
    assert_eq!(found, from);
    let mut events = Vec::new();
    for request in &requests {
        let event = decide(&facts, request);
        facts.evolve(&event);
        events.push(event);
    }
    let record = |event: &Event| OutRecord {
        topic: connections.topics.events.clone(),
        partition: 0,
        request_offset: event.request_offset,
        key: event.voucher_id.as_ref().map(|v| v.as_str().as_bytes().to_vec()),
        payload: codec.encode_event(event).unwrap(),
        headers: Vec::new(),
    };
    let records: Vec<_> = events.iter().map(record).collect();
    transaction.write(&facts, &events, from, to, &records).await.unwrap();
    transaction.commit().await.unwrap();
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_and_not_published_is_published_exactly_once() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 2, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..3));
    let first = commit_without_publishing(&world, 0, 4).await;

    let service = Instance::start(&world, &[]);
    let published = events_up_to(&world, 0, 4);
    assert_eq!(published, first, "the stored records, not new decisions");
    assert_eq!(events_up_to(&world, 0, buy(&world, &voucher, "late", 0) + 1).len(), 5);
    service.stop().unwrap();

    // Again after events are in the log: only what lies beyond them is published.
    append_all(&world, 0, &orders_of(&world, &voucher, 10..12));
    let second = commit_without_publishing(&world, 5, 7).await;
    let _service = Instance::start(&world, &[]);
    let events = events_up_to(&world, 0, buy(&world, &voucher, "later", 0) + 1);
    assert_eq!(events[5..7], second);
    assert_tables_equal_the_log(&world, &events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_postgres_is_folded_from_the_log_and_nothing_is_decided_twice() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 20, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..30));
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "4")]);
    let before = settled(&world, 0).await;
    service.stop().unwrap();

    sql(&world, "TRUNCATE orders, vouchers; UPDATE lane_positions SET next_offset = 0, records = ''").await;
    let _service = Instance::start(&world, &[("DOORBUSTER_ORDERS_FOLD_EVENTS", "7")]);
    assert_eq!(settled(&world, 0).await, before);
    assert_tables_equal_the_log(&world, &before).await;
    let after = events_up_to(&world, 0, buy(&world, &voucher, "late", 0) + 1);
    assert_eq!(after[..before.len()], before);
    assert_tables_equal_the_log(&world, &after).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_set_back_under_a_running_lane_catches_up_by_itself() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 20, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..10));
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_FOLD_EVENTS", "3")]);
    settled(&world, 0).await;
    sql(
        &world,
        "CREATE SCHEMA backup; CREATE TABLE backup.orders AS TABLE orders; CREATE TABLE backup.vouchers AS TABLE vouchers;
         CREATE TABLE backup.lane_positions AS TABLE lane_positions",
    )
    .await;
    assert_eq!(position(&world, 0).await, Some(11), "what the backup holds");
    append_all(&world, 0, &orders_of(&world, &voucher, 10..20));
    let before = settled(&world, 0).await;
    sql(
        &world,
        "BEGIN; TRUNCATE orders, vouchers, lane_positions; INSERT INTO orders SELECT * FROM backup.orders;
         INSERT INTO vouchers SELECT * FROM backup.vouchers; INSERT INTO lane_positions SELECT * FROM backup.lane_positions; COMMIT",
    )
    .await;
    assert_eq!(settled(&world, 0).await, before);
    assert_tables_equal_the_log(&world, &before).await;
    let after = events_up_to(&world, 0, buy(&world, &voucher, "late", 0) + 1);
    assert_tables_equal_the_log(&world, &after).await;
    assert!(service.metrics().contains("doorbuster_orders_folded_events_total 10"), "{}", service.metrics());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_offsets_are_never_read() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 20, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..10));
    let service = Instance::start(&world, &[]);
    let before = settled(&world, 0).await;
    service.stop().unwrap();

    let connections = world.connections();
    for offset in [0, 5, 1_000_000] {
        let group = connections.group("orders");
        let consumer: BaseConsumer = client_config(connections).set("group.id", group).create().unwrap();
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&connections.topics.requests, 0, Offset::Offset(offset)).unwrap();
        consumer.commit(&offsets, CommitMode::Sync).unwrap();
        let service = Instance::start(&world, &[]);
        let end = buy(&world, &voucher, &format!("after-{offset}"), 0) + 1;
        let after = events_up_to(&world, 0, end);
        assert_eq!(after[..before.len()], before);
        service.stop().unwrap();
        let committed = consumer.committed_offsets(offsets, PATIENCE).unwrap();
        let committed = committed.find_partition(&connections.topics.requests, 0).map(|p| p.offset());
        assert_eq!(committed, Some(Offset::Offset(end)), "they are written for lag tools, after {offset}");
    }
}

/// Breaks the world's database with `break_it`, starts the service and waits until partition 0 has stopped with all of `words`.
async fn stops_with(world: &World, break_it: &str, words: &[&str]) {
    let before = world.events(0);
    sql(world, break_it).await;
    let service = Instance::start(world, &[]);
    wait_until(PATIENCE, "the lane to stop", || service.readiness().contains("partition 0 has stopped"));
    let reason = service.readiness();
    assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    // It holds no lock while it stands, or whoever mends the row would wait for it.
    sql(world, "SELECT 1 FROM lane_positions FOR UPDATE NOWAIT").await;
    service.stop().unwrap();
    assert_eq!(world.events(0), before, "nothing may be published");
}

#[tokio::test(flavor = "multi_thread")]
async fn states_that_no_crash_can_leave_stop_the_lane_and_name_the_remedy() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 20, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..5));
    let service = Instance::start(&world, &[]);
    settled(&world, 0).await;
    service.stop().unwrap();
    sql(&world, "CREATE TABLE good AS TABLE lane_positions").await;
    let restore = "UPDATE lane_positions p SET next_offset = g.next_offset, records = g.records FROM good g;";

    let beyond = "UPDATE lane_positions SET next_offset = 1000, records = ''";
    stops_with(&world, beyond, &["next_offset in Postgres is 1000", "offsets 0..6"]).await;
    // The position was set back, the rows were not.
    let only_position = format!("{restore} UPDATE lane_positions SET next_offset = 3, records = ''");
    stops_with(&world, &only_position, &["restore Postgres as a whole", voucher.as_str()]).await;
    let foreign_rows = format!("{restore} UPDATE lane_positions SET records = '\\x09'");
    stops_with(&world, &foreign_rows, &["form 9"]).await;
    // Decided and committed, but neither stored nor in the log: acknowledged events are lost.
    buy(&world, &voucher, "late", 0);
    let lost = format!("{restore} UPDATE lane_positions SET next_offset = 7, records = ''");
    stops_with(&world, &lost, &["lost acknowledged events"]).await;

    sql(&world, restore).await;
    let _service = Instance::start(&world, &[]);
    let events = settled(&world, 0).await;
    assert_one_event_a_request(&events, 7);
    assert_tables_equal_the_log(&world, &events).await;
}
