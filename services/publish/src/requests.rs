//! The idempotent producer of requests.
//!
//! Each record carries the sender of a one-shot channel through librdkafka; the delivery report, which says whether the record may be in the
//! log, answers it. A fatal error ends a librdkafka producer for good: whoever needs it next puts a new one in its place and lets the old
//! one report what it still holds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use domain::Request;
use events::Codec;
use infra::{config::Connections, kafka};
use parking_lot::Mutex;
use rdkafka::{
    ClientConfig, ClientContext, Message,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode},
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, Producer, ProducerContext, PurgeConfig, ThreadedProducer},
};
use tokio::sync::oneshot;

use crate::delivery_status::{Persistence, persistence};

/// Records waiting in the producer at most: some seconds of a burst. More is answered at once, so that buyers are told instead of queued.
const QUEUE_RECORDS: &str = "200000";
/// The same in KiB.
const QUEUE_KIB: &str = "262144";
/// Acknowledgements missing for this long, while records wait, are trouble. A change of leader takes about 10 s. Where records are given up
/// sooner, half of that time.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at whether everything is reported.
const FLUSH_POLL: Duration = Duration::from_millis(2);
/// For the reports of records that were purged; they need no broker.
const PURGE_LIMIT: Duration = Duration::from_secs(2);

/// What became of a record. Three things, never two: an unknown outcome is not a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Acknowledged by all in-sync replicas.
    Persisted { partition: i32, offset: i64 },
    /// Certainly not in the log, and never will be.
    NotPersisted { reason: String },
    /// May be in the log, or may still get there.
    Unknown { reason: String },
}

/// Emits requests with `acks=all`, idempotent, to an explicit partition. Cheap to clone; clones share the producer, which is rebuilt after a fatal error.
///
/// Dropping the last clone does not block: what is in flight goes on being delivered in the background as long as the process lives.
/// [`flush`](Self::flush) first where it is about to end.
#[derive(Clone)]
pub struct RequestProducer {
    shared: Arc<Shared>,
}

struct Shared {
    topic: String,
    codec: Codec,
    config: ClientConfig,
    delivery_timeout: Duration,
    current: Mutex<Arc<Generation>>,
    pulse: Arc<Pulse>,
}

/// What is known about the records on their way, over all generations.
struct Pulse {
    began: Instant,
    in_flight: AtomicUsize,
    /// Milliseconds after `began`: the last acknowledgement, or the end of the last idle time.
    alive_at: AtomicU64,
    /// The last record reported was given up without an acknowledgement: an idle moment after that is no sign of life.
    is_given_up: AtomicBool,
    silence_limit: Duration,
}

/// One librdkafka producer, from its making to a fatal error.
struct Generation {
    producer: Option<ThreadedProducer<Reports>>,
    delivery_timeout: Duration,
}

struct Reports {
    pulse: Arc<Pulse>,
    /// It met a fatal error and sends nothing any more.
    is_broken: AtomicBool,
}

impl RequestProducer {
    /// Makes the producer; asks no broker yet.
    pub fn new(connections: &Connections, codec: Codec) -> Result<Self, KafkaError> {
        Self::with_config(connections, codec, settings(connections))
    }

    fn with_config(connections: &Connections, codec: Codec, config: ClientConfig) -> Result<Self, KafkaError> {
        let pulse = Arc::new(Pulse {
            began: Instant::now(),
            in_flight: AtomicUsize::new(0),
            alive_at: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            silence_limit: SILENCE_LIMIT.min(connections.delivery_timeout / 2),
        });
        let delivery_timeout = connections.delivery_timeout;
        let current = Mutex::new(Generation::start(&config, &pulse, delivery_timeout)?);
        let topic = connections.topics.requests.clone();
        Ok(Self { shared: Arc::new(Shared { topic, codec, config, delivery_timeout, current, pulse }) })
    }

    /// Hands the request over at once and gives a future of what became of it (within the delivery time-out). A full queue, or a record
    /// that is too large, is `NotPersisted` without delay. Dropping the future does not take the record back.
    pub fn send(&self, partition: i32, request: &Request) -> impl Future<Output = Delivery> + Send + use<> {
        self.send_with(partition, request, &[])
    }

    /// As [`send`](Self::send), with headers.
    pub fn send_with(
        &self,
        partition: i32,
        request: &Request,
        headers: &[(String, Vec<u8>)],
    ) -> impl Future<Output = Delivery> + Send + use<> {
        let handed_over = self.hand_over(partition, request, headers);
        async move {
            match handed_over {
                // The sender is lost only with a producer that could not report in time.
                Ok(report) => report.await.unwrap_or_else(|_| Delivery::Unknown { reason: "the producer ended".to_owned() }),
                Err(reason) => Delivery::NotPersisted { reason },
            }
        }
    }

    fn hand_over(
        &self,
        partition: i32,
        request: &Request,
        headers: &[(String, Vec<u8>)],
    ) -> Result<oneshot::Receiver<Delivery>, String> {
        if partition < 0 {
            // librdkafka would take this as "any partition".
            return Err(format!("there is no partition {partition}"));
        }
        let payload = self.shared.codec.encode_request(request).map_err(|e| e.to_string())?;
        let (answer, report) = oneshot::channel();
        let mut record = BaseRecord::with_opaque_to(&self.shared.topic, Box::new(answer))
            .partition(partition)
            .key(request.voucher_id.as_str())
            .payload(&payload);
        if !headers.is_empty() {
            let add = |all: OwnedHeaders, (name, value): &(String, Vec<u8>)| all.insert(Header { key: name, value: Some(value) });
            record = record.headers(headers.iter().fold(OwnedHeaders::new_with_capacity(headers.len()), add));
        }
        let generation = self.shared.current().map_err(|e| e.to_string())?;
        let Some(producer) = &generation.producer else { return Err("the producer ended".to_owned()) };
        // Counted before it can be reported.
        self.shared.pulse.departs();
        producer.send(record).map(|()| report).map_err(|(error, _)| {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
            self.shared.pulse.arrives(&Err(code));
            if code == RDKafkaErrorCode::Fatal {
                producer.context().is_broken.store(true, SeqCst);
            }
            error.to_string()
        })
    }

    /// Records handed over and not yet reported.
    pub fn in_flight(&self) -> usize {
        self.shared.pulse.in_flight.load(SeqCst)
    }

    /// Why records are not getting through at the moment, if so (nothing acknowledged for too long, no producer can be made).
    pub fn trouble(&self) -> Option<String> {
        self.shared.current().err().map(|problem| problem.to_string()).or_else(|| self.shared.pulse.trouble())
    }

    /// Waits until everything handed over is reported, at most `deadline`. Blocks; says how many are left.
    pub fn flush(&self, deadline: Duration) -> usize {
        let until = Instant::now() + deadline;
        while self.in_flight() > 0 && Instant::now() < until {
            thread::sleep(FLUSH_POLL);
        }
        self.in_flight()
    }
}

fn settings(connections: &Connections) -> ClientConfig {
    let mut config = kafka::client_config(connections);
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // Somebody waits for each acknowledgement: waiting for a full batch, which is of 10,000 by default, makes closed loops three times slower.
        // One of 32 is full in 2 ms at the highest rate of a process; below that, fewer and fuller requests save a third of Kafka's time.
        .set("linger.ms", "4")
        .set("batch.num.messages", "32")
        .set("compression.type", "lz4")
        .set("message.timeout.ms", connections.delivery_timeout.as_millis().to_string())
        .set("message.max.bytes", kafka::MAX_RECORD_BYTES.to_string())
        .set("queue.buffering.max.messages", QUEUE_RECORDS)
        .set("queue.buffering.max.kbytes", QUEUE_KIB);
    config
}

impl Shared {
    /// The producer; a new one where the last is broken. Making one asks no broker, and fails only where the process cannot have another thread.
    fn current(&self) -> Result<Arc<Generation>, KafkaError> {
        let mut current = self.current.lock();
        if let Some(broken) = current.producer.as_ref().filter(|producer| producer.context().is_broken.load(SeqCst)) {
            let next = Generation::start(&self.config, &self.pulse, self.delivery_timeout)?;
            tracing::warn!("the producer of requests is replaced after a fatal error");
            // Purging makes it say of each record whether it may have been persisted.
            broken.purge(PurgeConfig::default().queue().inflight());
            *current = next;
        }
        Ok(Arc::clone(&current))
    }
}

impl Pulse {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn departs(&self) {
        // Before it is counted: a record that waits must never be seen with the silence of the idle time before it.
        if self.in_flight.load(SeqCst) == 0 && !self.is_given_up.load(SeqCst) {
            self.alive_at.store(self.now(), SeqCst);
        }
        self.in_flight.fetch_add(1, SeqCst);
    }

    fn arrives(&self, delivery: &Result<(), RDKafkaErrorCode>) {
        match delivery {
            Ok(()) => {
                self.is_given_up.store(false, SeqCst);
                self.alive_at.store(self.now(), SeqCst);
            }
            Err(RDKafkaErrorCode::MessageTimedOut) => self.is_given_up.store(true, SeqCst),
            Err(_) => {}
        }
        self.in_flight.fetch_sub(1, SeqCst);
    }

    fn trouble(&self) -> Option<String> {
        let silence = Duration::from_millis(self.now().saturating_sub(self.alive_at.load(SeqCst)));
        let waiting = self.in_flight.load(SeqCst);
        (waiting > 0 && silence >= self.silence_limit)
            .then(|| format!("Kafka has acknowledged nothing for {} s; {waiting} records wait", silence.as_secs()))
    }
}

impl Generation {
    fn start(config: &ClientConfig, pulse: &Arc<Pulse>, delivery_timeout: Duration) -> Result<Arc<Self>, KafkaError> {
        let reports = Reports { pulse: pulse.clone(), is_broken: AtomicBool::new(false) };
        let producer = ThreadedProducer::from_config_and_context(config, reports)?;
        Ok(Arc::new(Self { producer: Some(producer), delivery_timeout }))
    }
}

impl Drop for Generation {
    /// Ending a producer joins threads and throws away what is queued, so it is done elsewhere and after everything has been reported.
    fn drop(&mut self) {
        let Some(producer) = self.producer.take() else { return };
        let deadline = self.delivery_timeout;
        let finish = move || {
            let waiting = producer.in_flight_count();
            if waiting > 0 {
                tracing::warn!(waiting, "a producer of requests was dropped with records in flight; finishing them");
            }
            if producer.flush(deadline).is_err() {
                producer.purge(PurgeConfig::default().queue().inflight());
                // Whoever waits for a report is told "unknown" when the producer is gone, if this fails too.
                let _ = producer.flush(PURGE_LIMIT);
            }
        };
        if let Err(problem) = thread::Builder::new().name("producer end".to_owned()).spawn(finish) {
            tracing::error!(%problem, "no thread to finish a producer of requests; what it held is unknown");
        }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        kafka::log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        kafka::log_error(&error, reason);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.is_broken.store(true, SeqCst);
        }
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Delivery>>;

    fn delivery(&self, result: &DeliveryResult<'_>, answer: Self::DeliveryOpaque) {
        let (delivery, seen) = match result {
            Ok(message) => (Delivery::Persisted { partition: message.partition(), offset: message.offset() }, Ok(())),
            Err((error, message)) => {
                let reason = error.to_string();
                let delivery = match persistence(message) {
                    Persistence::Never => Delivery::NotPersisted { reason },
                    Persistence::Possibly | Persistence::Surely => Delivery::Unknown { reason },
                };
                (delivery, Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)))
            }
        };
        self.pulse.arrives(&seen);
        // The caller may have stopped waiting; the record stays what it is.
        let _ = answer.send(delivery);
    }
}

#[cfg(test)]
mod tests {
    use domain::{RequestBody, VoucherId};
    use infra::config::Env;
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[tokio::test]
    async fn a_full_queue_is_told_at_once_and_takes_records_again_once_they_get_through() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        let kafka = cluster.bootstrap_servers();
        let unused = ["DOORBUSTER_REDIS", "DOORBUSTER_POSTGRES", "DOORBUSTER_REGISTRY"].map(|name| (name, "unused"));
        let connections = Connections::from_env(&Env::of(unused.into_iter().chain([("DOORBUSTER_KAFKA", kafka.as_str())])));
        let connections = connections.expect("all is set");
        cluster.create_topic(&connections.topics.requests, 1, 1).expect("a topic");
        let mut config = settings(&connections);
        config.set("queue.buffering.max.messages", "10");
        let producer = RequestProducer::with_config(&connections, Codec::offline(), config).expect("a producer can be made");
        let request = Request {
            id: Default::default(),
            voucher_id: VoucherId::parse("v").expect("a good id"),
            actor: String::new(),
            reason: None,
            body: RequestBody::VoucherPaused { expected_terms_version: 1 },
        };

        cluster.broker_down(1).expect("it is up");
        let waiting: Vec<_> = (0..10).map(|_| producer.send(0, &request)).collect();
        let told = Instant::now();
        let said = producer.send(0, &request).await;
        assert!(matches!(&said, Delivery::NotPersisted { reason } if reason.contains("full")), "{said:?}");
        assert!(told.elapsed() < Duration::from_millis(50), "told after {:?}", told.elapsed());
        assert_eq!(producer.in_flight(), 10);
        cluster.broker_up(1).expect("it is down");
        for said in waiting {
            let said = said.await;
            assert!(matches!(said, Delivery::Persisted { .. }), "{said:?}");
        }
        let said = producer.send(0, &request).await;
        assert!(matches!(said, Delivery::Persisted { .. }), "{said:?}");
    }
}
