//! Partitions, members and processes keep out of each other's way; records nobody can read stop only their partition.

use std::time::Duration;

use domain::{EventBody, RequestBody, VoucherId};
use infra::redis::Gate;
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    producer::{BaseProducer, BaseRecord, Producer},
};
use testkit::voucher_request;

use crate::{
    lane::Lane,
    stage::{Running, Stage},
};

/// The group's committed offset of a partition of `order-events`.
fn committed(stage: &Stage, partition: i32) -> Option<i64> {
    let connections = stage.world.connections();
    let mut config = infra::kafka::client_config(connections);
    let consumer: BaseConsumer = config.set("group.id", connections.group("compensation")).create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition(&connections.topics.events, partition);
    let found = consumer.committed_offsets(list, Duration::from_secs(5)).expect("Kafka answers");
    match found.find_partition(&connections.topics.events, partition)?.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_move_between_processes_without_losing_or_doubling_an_event() {
    let stage = Stage::new().await;
    let mut service = stage.run(&[]);
    let mut lanes = [stage.lane(0).await, stage.lane(1).await];
    let vouchers = [stage.publish(&mut lanes[0], 100, 1).await, stage.publish(&mut lanes[1], 100, 1).await];
    let mut user = 0;
    for _ in 0..2 {
        let next = stage.run(&[]);
        for _ in 0..15 {
            for (lane, voucher) in lanes.iter_mut().zip(&vouchers) {
                let name = format!("u{user}");
                lane.answer(testkit::order_request(voucher, stage.order_id(voucher, &name), &name, 1)).await;
                user += 1;
            }
        }
        service.stop().await;
        service = next;
    }
    for (lane, voucher) in lanes.iter().zip(&vouchers) {
        stage.wait_equal(lane, voucher).await;
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_another_epoch_does_not_open() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_WARMING_MS", "60000"), ("DOORBUSTER_COMPENSATION_WARDEN_MS", "60000")]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 5, 1).await;
    let mut waiting = Vec::new();
    waiting.push(lane.request(stage.reserve(&voucher, "a", 1).await).await);
    stage.command(&["FLUSHALL"]).await;
    // Another event of the voucher lets the stream find out; the request in flight keeps the gate closed.
    let nudge = testkit::voucher_request(&voucher, domain::RequestBody::VoucherPaused { expected_terms_version: 9 });
    let refused = lane.request(nudge).await;
    let events = lane.decide(&waiting).await;
    lane.publish(&events[0]).await;
    stage.wait("the repair", async || stage.voucher(&voucher).await.is_some_and(|v| v.gate == Gate::Warming && v.seq == 2)).await;
    // A successor raises the fence; then everything the first one waited for comes true.
    stage.store.raise_fence(&voucher, 0, "the successor's", false).await.expect("Redis answers");
    for event in lane.decide(&[refused]).await {
        lane.publish(&event).await;
    }
    // The sentinel comes through the same repair task of the same partition afterwards.
    let sentinel = stage.publish(&mut lane, 1, 1).await;
    stage.wait_ready(&sentinel).await;
    let found = stage.voucher(&voucher).await.expect("it is there");
    assert_eq!((found.gate, found.epoch.as_str(), found.seq), (Gate::Warming, "the successor's", 3));
    assert!(stage.store.open_gate(&voucher, "the successor's", 3).await.expect("Redis answers"));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_whose_owner_is_gone_is_taken_over() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_WARMING_MS", "60000")]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 5, 1).await;
    let undecided = lane.request(stage.reserve(&voucher, "a", 1).await).await;
    stage.command(&["FLUSHALL"]).await;
    stage.wait("the repair", async || stage.voucher(&voucher).await.is_some_and(|v| v.gate == Gate::Warming && v.seq == 1)).await;
    // In the middle of a repair, which gives up and begins anew; then with nothing to repair at all.
    stage.store.raise_fence(&voucher, 0, "somebody's", false).await.expect("Redis answers");
    for event in lane.decide(&[undecided]).await {
        lane.publish(&event).await;
    }
    stage.wait_equal(&lane, &voucher).await;
    stage.store.raise_fence(&voucher, 0, "somebody's", false).await.expect("Redis answers");
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_event_stops_its_partition_and_the_readiness_says_so() {
    let stage = Stage::new().await;
    let folder = stage.redis.folder().join("ready.json");
    let service = stage.run(&[("DOORBUSTER_READY_FILE", &folder.to_string_lossy())]);
    let (mut lane, mut other) = (stage.lane(0).await, stage.lane(1).await);
    let (voucher, healthy) = (stage.publish(&mut lane, 5, 1).await, stage.publish(&mut other, 5, 1).await);
    let port = crate::stage::port(&folder);
    let readyz = || devstack::http_get(port, "/readyz").expect("it answers");
    assert_eq!(readyz().0, 200);
    stage.world.append(&stage.world.connections().topics.events, 0, voucher.as_str().as_bytes(), b"no event");
    stage.wait("the partition to stop", async || readyz().0 == 503).await;
    assert!(readyz().1.contains("partition 0 has stopped"), "{}", readyz().1);
    let request = stage.reserve(&healthy, "a", 1).await;
    assert!(matches!(other.answer(request).await.body, EventBody::OrderConfirmed { .. }));
    stage.wait_equal(&other, &healthy).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_offset_comes_past_markers_and_aborted_records() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 5, 1).await;
    let request = stage.reserve(&voucher, "a", 1).await;
    let logged = lane.request(request).await;
    let event = lane.decide(&[logged]).await.remove(0);
    let bytes = stage.world.codec().encode_event(&event).expect("it can be encoded");
    let connections = stage.world.connections().clone();
    let topic = connections.topics.events.clone();
    tokio::task::spawn_blocking(move || {
        let wait = Duration::from_secs(20);
        let mut config = infra::kafka::client_config(&connections);
        let producer: BaseProducer =
            config.set("transactional.id", format!("{}-lane", connections.prefix)).create().expect("a producer");
        producer.init_transactions(wait).expect("transactions");
        for commit in [false, true, false] {
            producer.begin_transaction().expect("begin");
            let record = BaseRecord::<str, [u8]>::to(&connections.topics.events).partition(0).payload(&bytes);
            producer.send(record).map_err(|(e, _)| e).expect("send");
            producer.flush(wait).expect("flush");
            if commit {
                producer.commit_transaction(wait).expect("commit")
            } else {
                producer.abort_transaction(wait).expect("abort")
            }
        }
    })
    .await
    .expect("the lane's transactions");
    stage.wait_equal(&lane, &voucher).await;
    let end = stage.world.ends(&topic, 0).high;
    stage.wait("the group's offset at the end", async || committed(&stage, 0) == Some(end)).await;
    service.stop().await;
}

/// As after a commit that was refused without a word: the group has less than the member believes. Offsets from outside any generation are
/// the ones Kafka takes from anybody.
async fn rewind(stage: &Stage, partition: i32) {
    let connections = stage.world.connections().clone();
    let rewind = move || {
        let mut config = infra::kafka::client_config(&connections);
        let outsider: BaseConsumer = config.clone().set("group.id", connections.group("compensation")).create().unwrap();
        let producer: BaseProducer = config.set("transactional.id", connections.group("rewind")).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&connections.topics.events, partition, Offset::Offset(0)).unwrap();
        let limit = Duration::from_secs(20);
        producer.init_transactions(limit).unwrap();
        producer.begin_transaction().unwrap();
        producer.send_offsets_to_transaction(&list, &outsider.group_metadata().unwrap(), limit).unwrap();
        producer.commit_transaction(limit).unwrap();
    };
    tokio::task::spawn_blocking(rewind).await.unwrap();
}

/// Runs until a voucher is on sale and the group's offset says so; gives that offset, too.
async fn committed_once(stage: &Stage) -> (Running, Lane, VoucherId, Option<i64>) {
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 5, 1).await;
    stage.wait_ready(&voucher).await;
    stage.wait("the group has the offset", async || committed(stage, 0).is_some_and(|offset| offset > 0)).await;
    let settled = committed(stage, 0);
    (service, lane, voucher, settled)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_that_the_group_does_not_have_is_committed_again() {
    let stage = Stage::new().await;
    let (service, _lane, _voucher, settled) = committed_once(&stage).await;
    rewind(&stage, 0).await;
    stage.wait("the group has the offset again", async || committed(&stage, 0) == settled).await;
    service.stop().await;
}

/// An event that is read while Redis stands still is in no commit, however often the group's offsets are committed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_offset_is_committed_only_behind_what_is_settled() {
    let stage = Stage::new().await;
    let (service, mut lane, voucher, settled) = committed_once(&stage).await;
    stage.redis.pause().expect("it runs");
    let refused = voucher_request(&voucher, RequestBody::VoucherPaused { expected_terms_version: 9 });
    let refused = lane.request(refused).await;
    for event in lane.decide(&[refused]).await {
        lane.publish(&event).await;
    }
    for _ in 0..3 {
        rewind(&stage, 0).await;
        stage.wait("another round of commits", async || committed(&stage, 0).is_some_and(|offset| offset > 0)).await;
        assert_eq!(committed(&stage, 0), settled);
    }
    stage.redis.resume().expect("it is paused");
    stage.wait("the event to be settled and committed", async || committed(&stage, 0) > settled).await;
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}
