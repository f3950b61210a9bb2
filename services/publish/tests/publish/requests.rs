//! The idempotent producer: what it says about a record is what is true of the log.

use std::time::{Duration, Instant};

use domain::Request;
use events::Codec;
use infra::{config::Connections, kafka::MAX_RECORD_BYTES};
use publish::{Delivery, RequestProducer};
use rdkafka::{
    mocking::MockCluster,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::support::{PATIENCE, connections, names, own_broker, random_text, records, request};

fn producer(connections: &Connections) -> RequestProducer {
    RequestProducer::new(connections, Codec::offline()).expect("a producer can be made")
}

/// Requests of a partition, as the log has them.
fn logged(connections: &Connections, partition: i32) -> Vec<Request> {
    let decode = |bytes: &[u8]| Codec::offline().decode_request(bytes).expect("what was encoded can be decoded");
    records(connections, &connections.topics.requests, partition).iter().map(|record| decode(&record.payload)).collect()
}

#[tokio::test]
async fn an_acknowledged_request_is_where_the_answer_says() {
    let connections = connections();
    let producer = producer(&connections);
    let (first, second) = (request("first"), request("second"));
    assert_eq!(producer.send(1, &first).await, Delivery::Persisted { partition: 1, offset: 0 });
    assert_eq!(producer.send(1, &second).await, Delivery::Persisted { partition: 1, offset: 1 });
    assert_eq!((producer.in_flight(), producer.trouble()), (0, None));
    assert_eq!(logged(&connections, 1), [first, second]);
    assert_eq!(logged(&connections, 0), []);
    let key = records(&connections, &connections.topics.requests, 1).remove(0).key;
    assert_eq!(key.as_deref(), Some(b"voucher-1".as_slice()));
}

#[tokio::test]
async fn a_request_without_a_place_is_not_persisted() {
    let connections = connections();
    let producer = producer(&connections);
    assert!(matches!(producer.send(0, &request("so that the partitions are known")).await, Delivery::Persisted { .. }));
    for partition in [-1, 2, i32::MAX] {
        let said = producer.send(partition, &request("lost")).await;
        assert!(matches!(said, Delivery::NotPersisted { .. }), "partition {partition}: {said:?}");
    }
    assert_eq!(logged(&connections, 0).len(), 1);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_not_persisted_and_harms_no_other() {
    let connections = connections();
    let producer = producer(&connections);
    let empty = Codec::offline().encode_request(&request("")).expect("encodable").len() + "voucher-1".len();
    // Larger than the producer allows; and one that it allows, but that the topic refuses with the few bytes around it.
    for length in [MAX_RECORD_BYTES + 1, MAX_RECORD_BYTES - empty - 8] {
        let large = request(&random_text(length));
        let (said, beside) = tokio::join!(producer.send(0, &large), producer.send(1, &request("beside it")));
        assert!(matches!(said, Delivery::NotPersisted { .. }), "{length} bytes: {said:?}");
        assert!(matches!(beside, Delivery::Persisted { .. }), "{beside:?}");
    }
    let fits = request(&random_text(MAX_RECORD_BYTES - empty - 1024));
    let said = producer.send(0, &fits).await;
    assert!(matches!(said, Delivery::Persisted { .. }), "{said:?}");
    assert_eq!(logged(&connections, 0), [fits]);
}

#[tokio::test]
async fn a_frozen_broker_leaves_the_outcome_unknown_and_a_dead_one_does_not() {
    let (broker, connections) = own_broker();
    let producer = producer(&connections);
    let warm = producer.send(0, &request("warm")).await;
    assert!(matches!(warm, Delivery::Persisted { .. }), "{warm:?}");

    // Frozen: the record is on its way, and nobody can say whether it will arrive.
    broker.pause().expect("it runs");
    let (late, began) = (request("late"), Instant::now());
    let said = tokio::spawn(producer.send(0, &late));
    testkit::wait_until_async(PATIENCE, "trouble", async || producer.trouble().is_some()).await;
    assert_eq!(producer.in_flight(), 1);
    let said = said.await.expect("no panic");
    assert!(matches!(said, Delivery::Unknown { .. }), "a record on its way is not a failure: {said:?}");
    assert!(began.elapsed() < connections.delivery_timeout * 3, "took {:?}", began.elapsed());
    broker.resume().expect("it is paused");
    // It did arrive: whoever took "unknown" for "failed" would have given its units away.
    testkit::wait_until(PATIENCE, "the late record", || logged(&connections, 0).contains(&late));
    let said = producer.send(0, &request("back")).await;
    assert!(matches!(said, Delivery::Persisted { .. }), "{said:?}");
    assert_eq!(producer.trouble(), None);

    // Dead: what never left this process is certainly not in the log.
    broker.kill();
    testkit::wait_until_async(PATIENCE, "a record that never left", async || {
        matches!(producer.send(0, &request("never sent")).await, Delivery::NotPersisted { .. })
    })
    .await;
    let never = request("never");
    let said = producer.send(0, &never).await;
    assert!(matches!(said, Delivery::NotPersisted { .. }), "{said:?}");
    broker.restart().expect("it starts again");
    let said = producer.send(0, &request("again")).await;
    assert!(matches!(said, Delivery::Persisted { .. }), "{said:?}");
    assert!(!logged(&connections, 0).contains(&never));
}

#[tokio::test]
async fn a_fatal_error_is_mended_by_a_new_producer() {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    let connections = names(&cluster.bootstrap_servers());
    cluster.create_topic(&connections.topics.requests, 2, 1).expect("a topic");
    let producer = producer(&connections);
    assert!(matches!(producer.send(0, &request("warm")).await, Delivery::Persisted { .. }));
    for round in 0..3 {
        cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
        let said = producer.send(0, &request("fatal")).await;
        assert!(matches!(said, Delivery::Unknown { .. }), "round {round}: {said:?}");
        testkit::wait_until_async(PATIENCE, "a new producer", async || {
            matches!(producer.send(0, &request("after it")).await, Delivery::Persisted { .. })
        })
        .await;
        assert_eq!((producer.trouble(), producer.in_flight()), (None, 0));
    }
}

#[tokio::test]
async fn dropping_the_last_clone_blocks_nobody_and_loses_nothing() {
    let connections = connections();
    let producer = producer(&connections);
    let waiting: Vec<_> = (0..500).map(|n| producer.clone().send(0, &request(&n.to_string()))).collect();
    let began = Instant::now();
    drop(producer);
    let took = began.elapsed();
    assert!(took < Duration::from_millis(50), "dropping took {took:?}");
    for said in waiting {
        let said = said.await;
        assert!(matches!(said, Delivery::Persisted { .. }), "{said:?}");
    }
    assert_eq!(logged(&connections, 0).len(), 500);
}

#[tokio::test]
async fn flush_waits_for_everything_but_not_longer_than_it_may() {
    let connections = connections();
    let producer = producer(&connections);
    let waiting: Vec<_> = (0..100).map(|_| producer.send(0, &request("x"))).collect();
    assert_eq!(producer.flush(PATIENCE), 0);
    drop(waiting);
    assert_eq!(logged(&connections, 0).len(), 100);

    let nobody = names("127.0.0.1:9");
    let producer = self::producer(&nobody);
    let _waiting = producer.send(0, &request("x"));
    assert_eq!(producer.flush(Duration::from_millis(200)), 1);
}
