//! librdkafka's producers and consumers with the services' settings and nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use infra::{config::Connections, kafka::client_config};
use load::Quantiles;
use rdkafka::{
    ClientConfig, ClientContext, Message, Offset, TopicPartitionList,
    config::FromClientConfigAndContext,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::{BaseRecord, DefaultProducerContext, Producer, ProducerContext, ThreadedProducer},
};
use tokio::{sync::oneshot, task::JoinSet};

use super::{CALLERS, runtime};
use crate::http::announce;

const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at whether all is acknowledged, as the lanes have it.
const IN_FLIGHT_POLL: Duration = Duration::from_micros(200);

/// Tells each sender whether his record was acknowledged.
struct Acks;

impl ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = Box<oneshot::Sender<bool>>;

    fn delivery(&self, result: &DeliveryResult<'_>, sender: Self::DeliveryOpaque) {
        // Nobody waits any more where the run has failed.
        let _ = sender.send(result.is_ok());
    }
}

/// A producer with the settings of purchase's.
fn acked(connections: &Connections, linger_ms: &str) -> Result<Arc<ThreadedProducer<Acks>>> {
    let mut config = client_config(connections);
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", linger_ms).set("compression.type", "lz4");
    Ok(Arc::new(ThreadedProducer::from_config_and_context(&config, Acks)?))
}

async fn send(producer: &ThreadedProducer<Acks>, topic: &str, key: &str, payload: &[u8]) -> Result<()> {
    let (sender, acked) = oneshot::channel();
    let record = BaseRecord::with_opaque_to(topic, Box::new(sender)).partition(0).key(key).payload(payload);
    producer.send(record).map_err(|(error, _)| error)?;
    ensure!(acked.await?, "a record was not acknowledged");
    Ok(())
}

/// Acknowledged, idempotent records a second from 64 callers who each wait for their own.
pub(crate) fn produce(connections: &Connections, topic: &str, payload: Vec<u8>, count: usize, linger_ms: &str) -> Result<f64> {
    let producer = acked(connections, linger_ms)?;
    runtime()?.block_on(async {
        send(&producer, topic, "warm", &payload).await?;
        let (payload, next): (Arc<[u8]>, _) = (payload.into(), Arc::new(AtomicUsize::new(0)));
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (producer, payload, next, topic) = (producer.clone(), payload.clone(), Arc::clone(&next), topic.to_owned());
            callers.spawn(async move {
                while next.fetch_add(1, Ordering::Relaxed) < count {
                    send(&producer, &topic, "voucher", &payload).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller??;
        }
        Ok(count as f64 / began.elapsed().as_secs_f64())
    })
}

/// From the instant at which a record is due to its acknowledgement.
pub(crate) fn produce_open(
    connections: &Connections,
    topic: &str,
    payload: Vec<u8>,
    arrivals: Vec<Duration>,
) -> Result<Quantiles> {
    let producer = acked(connections, "1")?;
    runtime()?.block_on(async {
        send(&producer, topic, "warm", &payload).await?;
        let payload: Arc<[u8]> = payload.into();
        let began = Instant::now();
        let due = announce(began, arrivals.clone());
        let mut waiting = JoinSet::new();
        for at in arrivals {
            due.acquire().await?.forget();
            let (producer, payload, topic) = (producer.clone(), payload.clone(), topic.to_owned());
            waiting.spawn(async move {
                send(&producer, &topic, "voucher", &payload).await?;
                anyhow::Ok(began.elapsed().saturating_sub(at))
            });
        }
        let mut quantiles = Quantiles::new();
        while let Some(took) = waiting.join_next().await {
            quantiles.record(took??);
        }
        Ok(quantiles)
    })
}

/// Appends all payloads to a partition as fast as it can, and returns when they are acknowledged.
pub(crate) fn fill(connections: &Connections, topic: &str, partition: i32, key: &str, payloads: &[Vec<u8>]) -> Result<()> {
    let mut config = client_config(connections);
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "20").set("compression.type", "lz4");
    config.set("queue.buffering.max.messages", "1000000");
    let producer: ThreadedProducer<DefaultProducerContext> = config.create()?;
    for payload in payloads {
        let mut record = BaseRecord::to(topic).partition(partition).key(key).payload(payload);
        while let Err((error, back)) = producer.send(record) {
            ensure!(error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull), "{error}");
            thread::sleep(IN_FLIGHT_POLL);
            record = back;
        }
    }
    drained(&producer, Duration::from_millis(5))
}

fn drained<C: ProducerContext>(producer: &ThreadedProducer<C>, pause: Duration) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while producer.in_flight_count() > 0 {
        ensure!(Instant::now() < until, "records were not acknowledged within {PATIENCE:?}");
        thread::sleep(pause);
    }
    Ok(())
}

/// A transactional producer with the lanes' settings.
pub(crate) struct Transactions {
    producer: ThreadedProducer<DefaultProducerContext>,
    topic: String,
}

impl Transactions {
    pub(crate) fn start(connections: &Connections, topic: &str) -> Result<Self> {
        let mut config = client_config(connections);
        config
            .set("transactional.id", format!("{}-bare", connections.prefix))
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("retry.backoff.ms", "1")
            .set("retry.backoff.max.ms", "50")
            .set("compression.type", "lz4");
        let producer: ThreadedProducer<DefaultProducerContext> = config.create()?;
        producer.init_transactions(PATIENCE)?;
        Ok(Self { producer, topic: topic.to_owned() })
    }

    /// One transaction of `records` copies of a payload, with a group's offset where there is a consumer.
    pub(crate) fn one(
        &self,
        payload: &[u8],
        records: usize,
        consumer: Option<(&BaseConsumer, &TopicPartitionList)>,
    ) -> Result<()> {
        self.producer.begin_transaction()?;
        for _ in 0..records {
            let record = BaseRecord::to(&self.topic).partition(0).key("voucher").payload(payload);
            self.producer.send(record).map_err(|(error, _)| error)?;
        }
        if let Some((consumer, offsets)) = consumer {
            let metadata = consumer.group_metadata().context("a consumer with a group has metadata")?;
            self.producer.send_offsets_to_transaction(offsets, &metadata, PATIENCE)?;
        }
        // Else the commit waits 100 ms in the wrapper's own flush.
        drained(&self.producer, IN_FLIGHT_POLL)?;
        Ok(self.producer.commit_transaction(PATIENCE)?)
    }
}

/// A consumer of one partition from this offset on, with the lanes' settings.
fn consumer(connections: &Connections, topic: &str, from: i64) -> Result<BaseConsumer> {
    let mut config: ClientConfig = client_config(connections);
    config
        .set("group.id", format!("{}-bare", connections.prefix))
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("auto.offset.reset", "error")
        .set("fetch.wait.max.ms", "50")
        .set("fetch.queue.backoff.ms", "20")
        .set("queued.min.messages", "10000")
        .set("queued.max.messages.kbytes", "16384");
    let consumer: BaseConsumer = config.create()?;
    let mut at = TopicPartitionList::new();
    at.add_partition_offset(topic, 0, Offset::Offset(from))?;
    consumer.assign(&at)?;
    Ok(consumer)
}

/// Takes the next so many records; gives the offset behind the last.
fn take(consumer: &BaseConsumer, count: usize) -> Result<i64> {
    let (mut taken, mut next, until) = (0, 0, Instant::now() + PATIENCE);
    while taken < count {
        ensure!(Instant::now() < until, "only {taken} of {count} records came within {PATIENCE:?}");
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(message) => {
                let message = message.map_err(|error: KafkaError| error)?;
                std::hint::black_box(message.payload().map(<[u8]>::to_vec));
                (taken, next) = (taken + 1, message.offset() + 1);
            }
        }
    }
    Ok(next)
}

/// Records a second that are read from `topic` (there must be enough from `from` on).
pub(crate) fn consume(connections: &Connections, topic: &str, from: i64, count: usize) -> Result<f64> {
    let consumer = consumer(connections, topic, from)?;
    // Its start is not what is asked for.
    take(&consumer, 1)?;
    let began = Instant::now();
    take(&consumer, count - 1)?;
    Ok((count - 1) as f64 / began.elapsed().as_secs_f64())
}

/// Records a second that are read from one topic and written, transformed into `payload`, to another, a transaction with the group's offset for
/// each batch.
pub(crate) fn consume_and_produce(
    connections: &Connections,
    from: (&str, i64),
    to: &Transactions,
    payload: &[u8],
    count: usize,
    batch: usize,
) -> Result<f64> {
    let (topic, offset) = from;
    let consumer = consumer(connections, topic, offset)?;
    take(&consumer, 1)?;
    let (batches, began) = ((count - 1) / batch, Instant::now());
    for _ in 0..batches {
        let next = take(&consumer, batch)?;
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(topic, 0, Offset::Offset(next))?;
        to.one(payload, batch, Some((&consumer, &offsets)))?;
    }
    Ok((batches * batch) as f64 / began.elapsed().as_secs_f64())
}
