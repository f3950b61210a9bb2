//! Writing to and reading from a world's topics, past the services.

use std::{ops::ControlFlow, sync::mpsc, time::Duration};

use domain::{Event, Request, VoucherId};
use infra::kafka::{Ends, PartitionReader, Record, apply_topics, client_config, plan_topics};
use rdkafka::{
    ClientContext, Message,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
    config::FromClientConfigAndContext,
    error::KafkaError,
    message::DeliveryResult,
    producer::{BaseProducer, BaseRecord, Producer, ProducerContext},
};

use crate::{
    World,
    wait::{block_on, wait_for, wait_until},
};

/// Longest wait for an acknowledgement or for a lane's answer.
const PATIENCE: Duration = Duration::from_secs(30);

impl World {
    /// Appends the request to `order-requests` and gives its offset once it is acknowledged.
    pub fn append_request(&self, partition: i32, request: &Request) -> i64 {
        let bytes = self.codec().encode_request(request).expect("the request can be encoded");
        self.append(&self.connections().topics.requests, partition, request.voucher_id.as_str().as_bytes(), &bytes)
    }

    /// Appends the event to `order-events`, as a lane would but outside any transaction, and gives its offset.
    pub fn append_event(&self, partition: i32, event: &Event) -> i64 {
        let bytes = self.codec().encode_event(event).expect("the event can be encoded");
        let key = event.voucher_id.as_ref().map_or("", VoucherId::as_str);
        self.append(&self.connections().topics.events, partition, key.as_bytes(), &bytes)
    }

    /// Appends any bytes to any topic and gives their offset.
    pub fn append(&self, topic: &str, partition: i32, key: &[u8], payload: &[u8]) -> i64 {
        self.append_all(topic, partition, key, &[payload.to_vec()])
    }

    /// Appends many records of one key and gives the offset of the last one.
    pub fn append_all(&self, topic: &str, partition: i32, key: &[u8], payloads: &[Vec<u8>]) -> i64 {
        let mut config = client_config(self.connections());
        let (reports, reported) = mpsc::channel();
        let producer =
            BaseProducer::from_config_and_context(config.set("acks", "all"), Reports(reports)).expect("a producer can be made");
        for payload in payloads {
            let record = BaseRecord::to(topic).partition(partition).key(key).payload(payload);
            producer.send(record).map_err(|(e, _)| e).expect("the record is taken");
        }
        producer.flush(PATIENCE).expect("the records are delivered");
        let offsets =
            payloads.iter().map(|_| reported.recv().expect("a delivery is reported").expect("a record is acknowledged"));
        offsets.max().expect("there are records")
    }

    /// Deletes a topic of the world and makes it anew, empty.
    pub fn remake_topic(&self, topic: &str) {
        let admin: AdminClient<DefaultClientContext> = client_config(self.connections()).create().expect("a client can be made");
        block_on(async { admin.delete_topics(&[topic], &AdminOptions::new()).await }).expect("the topic can be deleted");
        wait_until(PATIENCE, "the topic to be made anew", || {
            let plan = plan_topics(self.connections(), Some(self.partitions())).expect("Kafka answers");
            !plan.steps.is_empty() && apply_topics(self.connections(), &plan).is_ok()
        });
    }

    /// All committed records of a partition, in order.
    pub fn records(&self, topic: &str, partition: i32) -> Vec<Record> {
        let mut reader = PartitionReader::open(self.connections(), topic, partition).expect("a reader can be opened");
        let ends = ends_of(&reader);
        let mut found = Vec::new();
        let mut keep = |record| {
            found.push(record);
            ControlFlow::Continue(())
        };
        reader.read(ends.start, ends.stable, &mut keep).expect("the partition can be read");
        found
    }

    /// The ends of a partition.
    pub fn ends(&self, topic: &str, partition: i32) -> Ends {
        ends_of(&PartitionReader::open(self.connections(), topic, partition).expect("a reader can be opened"))
    }

    /// All events of a partition with their offsets, in order.
    pub fn events(&self, partition: i32) -> Vec<(Event, i64)> {
        let codec = self.codec();
        let decode = |record: Record| {
            let event = codec.decode_event(&record.payload, partition).expect("an event can be decoded");
            (event, record.offset)
        };
        self.records(&self.connections().topics.events, partition).into_iter().map(decode).collect()
    }

    /// Waits for the event that answers the request at this offset.
    pub fn event_of(&self, partition: i32, request_offset: i64) -> Event {
        wait_for(PATIENCE, "the answer to a request", || {
            self.events(partition).into_iter().map(|(e, _)| e).find(|e| e.request_offset == request_offset)
        })
    }
}

/// A broker that was told of a topic a moment ago may not know its partitions yet.
fn ends_of(reader: &PartitionReader) -> Ends {
    wait_for(PATIENCE, "the partition's ends", || reader.ends().ok())
}

/// Hands on what became of each record: its offset.
struct Reports(mpsc::Sender<Result<i64, KafkaError>>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let offset = result.as_ref().map(Message::offset).map_err(|(error, _)| error.clone());
        // Whoever asked may be gone by now.
        let _ = self.0.send(offset);
    }
}
