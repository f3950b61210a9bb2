//! The lane's producer: all of a batch or nothing of it, once, and only for the owner of the partition.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use devstack::kafka::{ClusterOptions, start_cluster};
use infra::{
    config::Connections,
    kafka::{PartitionReader, Record, client_config},
};
use publish::{LaneProducer, OutRecord, TransactionError, group_generation};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata},
};
use testkit::{Mode, Proxy};

use crate::support::{PATIENCE, connections, names, own_broker, random_text, records, with_topics};

/// A member of the lanes' group that owns all partitions.
fn member(connections: &Connections) -> BaseConsumer {
    let mut config = client_config(connections);
    config
        .set("group.id", connections.group("orders"))
        .set("enable.auto.commit", "false")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "500");
    let consumer: BaseConsumer = config.create().expect("a consumer can be made");
    assert_eq!(group_generation(&consumer), -1, "it has not joined yet");
    consumer.subscribe(&[&connections.topics.requests]).expect("a good topic");
    testkit::wait_until(PATIENCE, "an assignment", || {
        consumer.poll(Duration::from_millis(20));
        consumer.assignment().is_ok_and(|list| list.count() > 0)
    });
    assert!(group_generation(&consumer) >= 0);
    consumer
}

fn metadata(consumer: &BaseConsumer) -> Arc<ConsumerGroupMetadata> {
    Arc::new(consumer.group_metadata().expect("it is a consumer with a group"))
}

fn start(connections: &Connections) -> LaneProducer {
    LaneProducer::start(connections, 0).expect("the lane's producer starts")
}

fn event(connections: &Connections, text: &str) -> OutRecord {
    OutRecord {
        topic: connections.topics.events.clone(),
        partition: 0,
        request_offset: 0,
        key: Some(b"voucher-1".to_vec()),
        payload: text.as_bytes().to_vec(),
        headers: vec![("found".to_owned(), b"here".to_vec())],
    }
}

fn published(connections: &Connections) -> Vec<String> {
    let text = |record: Record| String::from_utf8(record.payload).expect("tests write text");
    records(connections, &connections.topics.events, 0).into_iter().map(text).collect()
}

/// The group's offset, once no transaction holds it.
fn committed(connections: &Connections, consumer: &BaseConsumer) -> Option<Offset> {
    testkit::wait_for(PATIENCE, "the group's offset", || {
        let mut list = TopicPartitionList::new();
        list.add_partition(&connections.topics.requests, 0);
        consumer.committed_offsets(list, Duration::from_secs(2)).ok()
    })
    .elements()
    .first()
    .map(|found| found.offset())
}

#[test]
fn a_batch_becomes_visible_whole_and_with_the_groups_offset() {
    let connections = connections();
    let consumer = member(&connections);
    let producer = start(&connections);
    let batch = ["a", "b", "c"].map(|text| event(&connections, text));
    let letter = OutRecord { topic: connections.topics.dead_letters.clone(), ..event(&connections, "letter") };
    producer.publish(&[batch.as_slice(), &[letter]].concat(), 3, &metadata(&consumer)).expect("it commits");
    producer.publish(&[event(&connections, "d")], 4, &metadata(&consumer)).expect("it commits");
    assert_eq!(published(&connections), ["a", "b", "c", "d"]);
    assert_eq!(committed(&connections, &consumer), Some(Offset::Offset(4)));
    let first = records(&connections, &connections.topics.events, 0).remove(0);
    assert_eq!(first.key.as_deref(), Some(b"voucher-1".as_slice()));
    assert_eq!(first.headers, [("found".to_owned(), b"here".to_vec())]);
    assert_eq!(records(&connections, &connections.topics.dead_letters, 0).len(), 1);
}

#[test]
fn the_next_owner_fences_the_last_one() {
    let connections = connections();
    let consumer = member(&connections);
    let old = start(&connections);
    old.publish(&[event(&connections, "a")], 1, &metadata(&consumer)).expect("it commits");
    let new = start(&connections);
    let refused = old.publish(&[event(&connections, "twice")], 2, &metadata(&consumer));
    assert!(matches!(refused, Err(TransactionError::Failed(_))), "{refused:?}");
    // And it stays so, without asking anybody.
    let refused = old.publish(&[event(&connections, "twice")], 2, &metadata(&consumer));
    assert!(matches!(refused, Err(TransactionError::Failed(_))), "{refused:?}");
    new.publish(&[event(&connections, "b")], 2, &metadata(&consumer)).expect("it commits");
    assert_eq!(published(&connections), ["a", "b"]);
    assert_eq!(committed(&connections, &consumer), Some(Offset::Offset(2)));
}

#[test]
fn a_stale_generation_is_refused() {
    let connections = connections();
    let first = member(&connections);
    let stale = metadata(&first);
    drop(first);
    let second = member(&connections);
    for _ in 0..2 {
        let refused = start(&connections).publish(&[event(&connections, "a")], 1, &stale);
        assert!(matches!(refused, Err(TransactionError::Failed(_))), "{refused:?}");
    }
    start(&connections).publish(&[event(&connections, "a")], 1, &metadata(&second)).expect("it commits");
    assert_eq!(published(&connections), ["a"]);
    assert_eq!(committed(&connections, &second), Some(Offset::Offset(1)));
}

/// The broker appends a batch, but its answer is lost and the connection with it. The batch that follows has as many records: a producer that
/// counted on from before the first would have it taken for a repeat, acknowledged and dropped.
#[test]
fn a_batch_after_one_whose_acknowledgement_was_lost_is_not_taken_for_its_repeat() {
    let proxy = Proxy::start().expect("a port is free");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = Some(folder.path().to_path_buf());
    let options = ClusterOptions { brokers: 1, advertised: Some(vec![proxy.port()]), dir };
    let brokers = start_cluster(options).expect("Kafka starts");
    let direct = names(brokers[0].endpoint());
    proxy.set_target(brokers[0].port());
    let connections = with_topics(Connections { transaction_timeout: Duration::from_secs(20), ..direct });
    // Nothing that asks the broker would see it before the producer does.
    let log = folder.path().join(format!("1/data/{}-0/{:020}.log", connections.topics.events, 0));
    let appended = || std::fs::metadata(&log).expect("the partition has a log").len();
    // Outside the group, its generation is not checked.
    let outside: BaseConsumer =
        client_config(&connections).set("group.id", connections.group("orders")).create().expect("a consumer can be made");
    let producer = start(&connections);
    producer.publish(&[event(&connections, "a")], 1, &metadata(&outside)).expect("it commits");
    // The marker of its commit follows the acknowledgement.
    assert_eq!(published(&connections), ["a"]);
    let before = appended();

    proxy.set(Mode::Delay(Duration::from_secs(1)));
    let (began, half) = (Instant::now(), connections.transaction_timeout / 2);
    let first = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| producer.publish(&[event(&connections, "b")], 2, &metadata(&outside)));
        // The answer is under way for as long as the question was.
        testkit::wait_until(half, "the batch in the log", || appended() > before);
        proxy.set(Mode::Refuse);
        // Whoever aborts now, and needs the broker for that, has thrown the batch away before it is there again.
        let is_late = || began.elapsed() > half + Duration::from_secs(1);
        testkit::wait_until(PATIENCE, "the time limit", || is_late() || publishing.is_finished());
        proxy.set(Mode::Open);
        publishing.join().expect("no panic")
    });
    assert!(matches!(first, Err(TransactionError::Failed(_))), "the answer was not lost: {first:?}");
    if producer.publish(&[event(&connections, "b")], 2, &metadata(&outside)).is_err() {
        start(&connections).publish(&[event(&connections, "b")], 2, &metadata(&outside)).expect("it commits");
    }
    assert_eq!(published(&connections), ["a", "b"]);
}

#[test]
fn one_record_that_fails_keeps_the_whole_batch_out() {
    // A partition that does not exist is waited for: it may be a new one.
    let connections = Connections { transaction_timeout: Duration::from_secs(6), ..connections() };
    let consumer = member(&connections);
    // Too large for the topic, so only the broker refuses it; too large for anybody; no such partition; none at all.
    let too_large = event(&connections, &random_text(3 << 19));
    let far_too_large = event(&connections, &random_text(3 << 20));
    let nowhere = OutRecord { partition: 7, ..event(&connections, "nowhere") };
    let any = OutRecord { partition: -1, ..event(&connections, "any") };
    for (n, bad) in [too_large, far_too_large, nowhere, any].into_iter().enumerate() {
        let batch = [event(&connections, "good"), bad, event(&connections, "good")];
        let refused = start(&connections).publish(&batch, 3, &metadata(&consumer));
        assert!(matches!(refused, Err(TransactionError::Failed(_))), "case {n}: {refused:?}");
        assert_eq!(published(&connections), Vec::<String>::new(), "case {n}");
    }
    start(&connections).publish(&[event(&connections, "a")], 1, &metadata(&consumer)).expect("it commits");
    assert_eq!(published(&connections), ["a"]);
    assert_eq!(committed(&connections, &consumer), Some(Offset::Offset(1)));
}

#[test]
fn a_commit_does_not_wait_out_a_polling_interval() {
    let connections = connections();
    let consumer = member(&connections);
    let producer = start(&connections);
    // Large enough to be still in flight when the offsets are in the transaction.
    let text = random_text(500);
    let batch: Vec<OutRecord> = (0..2000).map(|_| event(&connections, &text)).collect();
    let mut took: Vec<Duration> = (1..=20)
        .map(|n| {
            let began = Instant::now();
            producer.publish(&batch, n, &metadata(&consumer)).expect("it commits");
            began.elapsed()
        })
        .collect();
    took.sort();
    println!("2000 records, begin to commit: fastest {:?}, median {:?}, slowest {:?}", took[0], took[10], took[19]);
    // With records in flight at the commit, each takes 100 ms and more; other work on the machine slows some down, not all.
    assert!(took[0] < Duration::from_millis(95), "all took {:?} and more", took[0]);
}

#[test]
fn a_frozen_broker_ends_a_transaction_in_time_and_nothing_appears_twice() {
    let (broker, connections) = own_broker();
    let consumer = member(&connections);
    let producer = start(&connections);
    producer.publish(&[event(&connections, "a")], 1, &metadata(&consumer)).expect("it commits");
    let handed_over = metadata(&consumer);
    broker.pause().expect("it runs");
    let began = Instant::now();
    let failed = producer.publish(&[event(&connections, "b")], 2, &handed_over);
    assert!(failed.is_err());
    assert!(began.elapsed() < connections.transaction_timeout, "took {:?}", began.elapsed());
    broker.resume().expect("it is paused");
    drop(producer);

    let producer = testkit::wait_for(PATIENCE, "a new producer", || LaneProducer::start(&connections, 0).ok());
    let before = published(&connections);
    assert!(before == ["a"] || before == ["a", "b"], "{before:?}");
    drop(consumer);
    let consumer = member(&connections);
    producer.publish(&[event(&connections, "c")], 3, &metadata(&consumer)).expect("it commits");
    assert_eq!(published(&connections), [before, vec!["c".to_owned()]].concat());
}

#[test]
fn a_batch_is_published_for_good_once_the_log_is_stable_behind_its_last_event() {
    let connections = connections();
    let consumer = member(&connections);
    let producer = start(&connections);
    let reader = PartitionReader::open(&connections, &connections.topics.events, 0).expect("a reader");
    for text in ["a", "b"] {
        let end = producer.publish(&[event(&connections, text)], 1, &metadata(&consumer)).expect("it commits");
        testkit::wait_until(PATIENCE, "the marker", || reader.ends().expect("the broker answers").stable >= end);
        // Behind it there is the marker, and nothing else.
        assert_eq!(reader.ends().expect("the broker answers").high, end + 1);
    }
}

#[test]
fn closing_what_was_left_open_shows_nothing_and_leaves_nothing_open() {
    let connections = connections();
    let consumer = member(&connections);
    let producer = start(&connections);
    producer.publish(&[event(&connections, "a")], 1, &metadata(&consumer)).expect("it commits");
    producer.abort_abandoned().expect("it aborts");
    producer.abort_abandoned().expect("it aborts again");
    producer.publish(&[event(&connections, "b")], 2, &metadata(&consumer)).expect("it commits");
    let reader = PartitionReader::open(&connections, &connections.topics.events, 0).expect("a reader");
    testkit::wait_until(PATIENCE, "the markers", || {
        let ends = reader.ends().expect("the broker answers");
        ends.stable == ends.high
    });
    assert_eq!(published(&connections), ["a", "b"]);
    assert_eq!(committed(&connections, &consumer), Some(Offset::Offset(2)));
}
