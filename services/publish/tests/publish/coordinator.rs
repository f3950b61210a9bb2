//! What a transaction coordinator may answer in a bad hour, and what the lane's producer makes of it. On librdkafka's mock cluster, which can
//! be told what to say; it proves nothing about visibility.

use std::time::{Duration, Instant};

use infra::{config::Connections, kafka::client_config};
use publish::{LaneProducer, OutRecord, TransactionError};
use rdkafka::{
    consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata},
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr, RDKafkaRespErr::*},
};

use crate::support::names;

/// A time-out that a test waits for.
const SHORT: Duration = Duration::from_secs(3);
/// One that none should: asking for the coordinator again takes librdkafka half a second each time.
const LONG: Duration = Duration::from_secs(30);

struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    connections: Connections,
    record: OutRecord,
    metadata: ConsumerGroupMetadata,
}

impl Mock {
    fn new(transaction_timeout: Duration) -> Self {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        let connections = Connections { transaction_timeout, ..names(&cluster.bootstrap_servers()) };
        for topic in [&connections.topics.requests, &connections.topics.events] {
            cluster.create_topic(topic, 1, 1).expect("a topic");
        }
        let record = OutRecord {
            topic: connections.topics.events.clone(),
            partition: 0,
            request_offset: 0,
            key: None,
            payload: b"event".to_vec(),
            headers: Vec::new(),
        };
        let consumer: BaseConsumer =
            client_config(&connections).set("group.id", connections.group("orders")).create().expect("a consumer can be made");
        let metadata = consumer.group_metadata().expect("it has a group");
        Self { cluster, connections, record, metadata }
    }

    /// What becomes of a batch when the next requests of this kind are answered so; and of the batch after it.
    fn publish(
        &self,
        api: RDKafkaApiKey,
        answers: &[RDKafkaRespErr],
    ) -> (Result<(), TransactionError>, Result<(), TransactionError>) {
        let producer = LaneProducer::start(&self.connections, 0).expect("the lane's producer starts");
        let publish = |offset| producer.publish(std::slice::from_ref(&self.record), offset, &self.metadata);
        publish(1).expect("the first batch commits");
        self.cluster.request_errors(api, answers);
        let began = Instant::now();
        let result = publish(2);
        assert!(began.elapsed() < self.connections.transaction_timeout, "took {:?}", began.elapsed());
        self.cluster.clear_request_errors(api);
        (result.map(|_| ()), publish(3).map(|_| ()))
    }
}

#[test]
fn what_passes_by_itself_is_asked_again() {
    let mock = Mock::new(LONG);
    for (api, answer) in [
        (RDKafkaApiKey::EndTxn, RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE),
        (RDKafkaApiKey::EndTxn, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS),
        (RDKafkaApiKey::EndTxn, RD_KAFKA_RESP_ERR_NOT_COORDINATOR),
        (RDKafkaApiKey::AddPartitionsToTxn, RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS),
        (RDKafkaApiKey::AddOffsetsToTxn, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS),
        (RDKafkaApiKey::TxnOffsetCommit, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS),
        (RDKafkaApiKey::Produce, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION),
    ] {
        let results = mock.publish(api, &[answer, answer]);
        assert!(matches!(results, (Ok(()), Ok(()))), "{api:?} {answer:?}: {results:?}");
    }
}

#[test]
fn what_spoils_the_transaction_ends_the_producer() {
    let mock = Mock::new(LONG);
    for (api, answer) in [
        (RDKafkaApiKey::TxnOffsetCommit, RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION),
        (RDKafkaApiKey::TxnOffsetCommit, RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID),
        (RDKafkaApiKey::AddPartitionsToTxn, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED),
        (RDKafkaApiKey::AddPartitionsToTxn, RD_KAFKA_RESP_ERR_PRODUCER_FENCED),
        (RDKafkaApiKey::Produce, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE),
        (RDKafkaApiKey::Produce, RD_KAFKA_RESP_ERR_INVALID_RECORD),
        (RDKafkaApiKey::EndTxn, RD_KAFKA_RESP_ERR_PRODUCER_FENCED),
        (RDKafkaApiKey::EndTxn, RD_KAFKA_RESP_ERR_INVALID_TXN_STATE),
    ] {
        let results = mock.publish(api, &[answer]);
        assert!(
            matches!(results, (Err(TransactionError::Failed(_)), Err(TransactionError::Failed(_)))),
            "{api:?} {answer:?}: {results:?}"
        );
    }
}

#[test]
fn a_commit_that_nobody_confirms_is_unknown_and_ends_the_producer() {
    let mock = Mock::new(SHORT);
    let results = mock.publish(RDKafkaApiKey::EndTxn, &[RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS; 10_000]);
    assert!(matches!(results, (Err(TransactionError::Unknown(_)), Err(TransactionError::Failed(_)))), "{results:?}");
}

#[test]
fn a_batch_that_does_not_get_through_in_time_fails() {
    let mock = Mock::new(SHORT);
    let results = mock.publish(RDKafkaApiKey::Produce, &[RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION; 10_000]);
    assert!(matches!(results.0, Err(TransactionError::Failed(_))), "{results:?}");
}
