//! The one place where librdkafka's C API is called: whether a message that failed may still have been persisted, and a group's generation.
//! The safe wrapper shows neither, and both decide over stock: a record that may be in the log must not be taken back, and offsets sent with
//! generation -1 are not checked by Kafka.
#![allow(unsafe_code)]

use rdkafka::{
    bindings::{
        rd_kafka_consumer_group_metadata, rd_kafka_consumer_group_metadata_destroy,
        rd_kafka_consumer_group_metadata_generation_id, rd_kafka_message_status, rd_kafka_msg_status_t,
    },
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    message::BorrowedMessage,
};

/// What librdkafka knows of a record it reports (its INTRODUCTION.md, "Message persistence status").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    Never,
    Possibly,
    Surely,
}

/// The persistence status of a message in its delivery report.
pub(crate) fn persistence(report: &BorrowedMessage<'_>) -> Persistence {
    // SAFETY: the pointer is that of a message librdkafka has handed over, which lives as long as the borrow; the call only reads it.
    match unsafe { rd_kafka_message_status(report.ptr()) } {
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => Persistence::Never,
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED => Persistence::Possibly,
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_PERSISTED => Persistence::Surely,
    }
}

/// The generation in which this consumer is a member of its group at the moment; -1: it is in none, and Kafka would not check offsets sent with that.
pub fn group_generation<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> i32 {
    // SAFETY: the client's pointer is valid as long as the consumer is borrowed. The metadata is ours: it is checked for null, read, and
    // destroyed once.
    unsafe {
        let metadata = rd_kafka_consumer_group_metadata(consumer.client().native_ptr());
        if metadata.is_null() {
            return -1;
        }
        let generation = rd_kafka_consumer_group_metadata_generation_id(metadata);
        rd_kafka_consumer_group_metadata_destroy(metadata);
        generation
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use infra::kafka::{Record, UNREADABLE_HEADERS};
    use rdkafka::{
        ClientConfig, Offset, TopicPartitionList,
        bindings::{rd_kafka_header_add, rd_kafka_resp_err_t},
        message::{Header, OwnedHeaders},
        mocking::MockCluster,
        producer::{BaseProducer, BaseRecord, Producer},
    };

    use super::*;

    /// Only here, where `unsafe` is allowed, can such a name be written.
    #[test]
    fn a_header_name_that_is_no_text_does_not_stop_the_reader() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 1, 1).expect("a topic");
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "g");
        let producer: BaseProducer = config.create().expect("a producer can be made");
        let headers = OwnedHeaders::new().insert(Header { key: "good", value: Some("1") });
        let name = [b'x', 0xff, 0xfe];
        // SAFETY: a BorrowedHeaders is nothing but librdkafka's list of headers seen through a reference; the call copies the name.
        let added = unsafe {
            let list = std::ptr::from_ref(headers.as_borrowed()).cast_mut().cast();
            rd_kafka_header_add(list, name.as_ptr().cast(), name.len() as isize, std::ptr::null(), 0)
        };
        assert_eq!(added, rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR);
        let headers = headers.insert(Header { key: "behind", value: Some("3") });
        let record = BaseRecord::<(), str>::to("t").partition(0).payload("still here").headers(headers);
        producer.send(record).map_err(|(error, _)| error).expect("room");
        producer.flush(Duration::from_secs(10)).expect("delivered");

        let consumer: BaseConsumer = config.create().expect("a consumer can be made");
        let mut from = TopicPartitionList::new();
        from.add_partition_offset("t", 0, Offset::Beginning).expect("a good offset");
        consumer.assign(&from).expect("it can be assigned");
        let until = Instant::now() + Duration::from_secs(10);
        let record = loop {
            assert!(Instant::now() < until, "the record never came");
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                break Record::of(&message);
            }
        };
        assert_eq!(record.payload, b"still here");
        assert_eq!(record.headers, [("good".to_owned(), b"1".to_vec()), (UNREADABLE_HEADERS.to_owned(), Vec::new())]);
    }
}
