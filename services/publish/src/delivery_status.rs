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
