//! The transactional producer of one lane.
//!
//! One batch is one transaction: its records and the group's offset become visible together or not at all. Every call has a time limit, and all of
//! them together stay below the transaction's own time-out, so that the broker never aborts behind the back of a lane that still works on it.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use infra::{config::Connections, crash, kafka, postgres::OutRecord};
use parking_lot::Mutex;
use rdkafka::{
    ClientContext, Message, Offset, TopicPartitionList,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    consumer::ConsumerGroupMetadata,
    error::{KafkaError, RDKafkaErrorCode},
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer, ProducerContext},
};

/// For `init_transactions`, over all its tries. Taking over an open transaction takes 0.6 to 1 s, a change of leader up to 10 s.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Longest single call to librdkafka: a hanging one must not use up the whole of a limit.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at whether all records are reported; a transaction of 500 takes some milliseconds.
const IN_FLIGHT_POLL: Duration = Duration::from_micros(200);
/// Between two tries of a call that said "retriable", or of a record that found the queue full.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// How a transaction ended that did not commit. Either way the producer is finished: see [`LaneProducer`].
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// Nothing is published: a refused generation, a record that failed, a time limit, a newer producer of this partition.
    #[error("not published: {0}")]
    Failed(String),
    /// The commit may or may not have happened: the log must say.
    #[error("outcome of the commit unknown: {0}")]
    Unknown(String),
}

/// One partition's transactional producer. Blocks; lives on its lane's thread.
///
/// **After any error it is finished**: every further call fails, and only a new producer, which aborts what this one left open, can go on. It
/// must not abort and be used again. Where a record was sent but its acknowledgement was lost, librdkafka (2.12.1, "ADVBASE") gives the
/// sequence numbers of what an abort throws away to the records of the next transaction; the broker takes those for repeats of the
/// aborted ones, acknowledges them and does not store them, and the commit that follows is one of nothing. A new producer has a new epoch.
pub struct LaneProducer {
    /// Without a thread that polls it, of which twelve idle ones took 7 % of a core: each reads the clock for the last millisecond of every 100.
    producer: Arc<BaseProducer<Reports>>,
    requests: String,
    events: String,
    partition: i32,
    transaction_timeout: Duration,
    is_finished: AtomicBool,
}

impl LaneProducer {
    /// Builds the producer and runs `init_transactions`, which fences and aborts whoever used this partition's id before.
    /// Fails with `Failed` within 15 s; the caller tries again.
    pub fn start(connections: &Connections, partition: i32) -> Result<Self, TransactionError> {
        let timeout = connections.transaction_timeout;
        let mut config = kafka::client_config(connections);
        config
            // The id belongs to the partition: its next owner releases at once what a dead one left open.
            .set("transactional.id", format!("{}-{partition}", connections.group("orders")))
            .set("transaction.timeout.ms", timeout.as_millis().to_string())
            // librdkafka wants it below the transaction's time-out.
            .set("socket.timeout.ms", Duration::from_secs(10).min(timeout / 2).as_millis().to_string())
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            // The first AddOffsetsToTxn after a commit is told CONCURRENT_TRANSACTIONS: with the default of 100 ms each transaction waits that long.
            .set("retry.backoff.ms", "1")
            .set("retry.backoff.max.ms", "50")
            .set("compression.type", "lz4")
            .set("message.max.bytes", kafka::MAX_DEAD_LETTER_BYTES.to_string());
        let reports = Reports { events: connections.topics.events.clone(), current: Mutex::default() };
        let producer =
            BaseProducer::from_config_and_context(&config, reports).map_err(|e| TransactionError::Failed(e.to_string()))?;
        let until = Instant::now() + START_LIMIT;
        retried(until, || producer.init_transactions(left(until)))
            .map_err(|e| TransactionError::Failed(format!("init_transactions: {e}")))?;
        Ok(Self {
            producer: Arc::new(producer),
            requests: connections.topics.requests.clone(),
            events: connections.topics.events.clone(),
            partition,
            transaction_timeout: timeout,
            is_finished: AtomicBool::new(false),
        })
    }

    /// Publishes the records and the group's offset (`next_offset` of `order-requests`) in one transaction. Takes at most half of the
    /// transaction's time-out and the last call's 5 s.
    ///
    /// Gives the offset after its last event (0 where it had none). Only once the partition's last stable offset has reached that, nothing can
    /// take the transaction back: a coordinator acknowledges a commit before it writes the markers, and one that restarts while the
    /// partition has no leader leaves them out for good ("likely deleted already").
    pub fn publish(
        &self,
        records: &[OutRecord],
        next_offset: i64,
        metadata: &Arc<ConsumerGroupMetadata>,
    ) -> Result<i64, TransactionError> {
        self.unless_finished(|| self.transaction(records, next_offset, metadata))
    }

    /// Closes what a commit whose markers were left out has left open on the lane's partition of `order-events`, as aborted: begins a
    /// transaction, sends an empty record, aborts it. Waits for a commit of this id that is still under way. Changes nothing visible.
    pub fn abort_abandoned(&self) -> Result<(), TransactionError> {
        self.unless_finished(|| {
            let until = self.begin()?;
            let empty = OutRecord {
                topic: self.events.clone(),
                partition: self.partition,
                request_offset: -1,
                key: None,
                payload: Vec::new(),
                headers: Vec::new(),
            };
            self.send(&empty, until)?;
            self.wait_until_acknowledged(until)?;
            retried(until, || self.producer.abort_transaction(left(until))).map_err(failed("abort"))
        })
    }

    /// Takes what the client library has to report. A lane that publishes nothing calls it now and then.
    pub fn serve(&self) {
        loop {
            // Reports that wait are counted, too; one call takes one.
            let before = self.producer.in_flight_count();
            self.producer.poll(Duration::ZERO);
            if self.producer.in_flight_count() >= before {
                return;
            }
        }
    }

    fn unless_finished<T>(&self, work: impl FnOnce() -> Result<T, TransactionError>) -> Result<T, TransactionError> {
        if self.is_finished.load(SeqCst) {
            return Err(TransactionError::Failed("the producer was finished by an earlier error".to_owned()));
        }
        let result = work();
        if result.is_err() {
            self.is_finished.store(true, SeqCst);
        }
        result
    }

    /// Begins a transaction and says until when it may take.
    fn begin(&self) -> Result<Instant, TransactionError> {
        let until = Instant::now() + self.transaction_timeout / 2;
        *self.producer.context().current.lock() = Reported::default();
        self.producer.begin_transaction().map_err(failed("begin"))?;
        Ok(until)
    }

    fn transaction(
        &self,
        records: &[OutRecord],
        next_offset: i64,
        metadata: &Arc<ConsumerGroupMetadata>,
    ) -> Result<i64, TransactionError> {
        let until = self.begin()?;
        records.iter().try_for_each(|record| self.send(record, until))?;
        crash::point("orders.sent");
        let mut offsets = TopicPartitionList::with_capacity(1);
        offsets.add_partition_offset(&self.requests, self.partition, Offset::Offset(next_offset)).map_err(failed("offset"))?;
        self.send_offsets(offsets, metadata, until)?;
        // All records are in the log then, undecided.
        self.wait_until_acknowledged(until)?;
        crash::point("orders.prepared");
        self.commit(until)?;
        Ok(self.producer.context().current.lock().end)
    }

    /// On a thread of its own, which is left behind together with the producer when time is over: librdkafka (2.12.1) waits without limit for
    /// this call, and loses a question for the group's coordinator that is not answered well (`creq_ts_timeout` in rdkafka_coord.c is set
    /// and never read).
    fn send_offsets(
        &self,
        offsets: TopicPartitionList,
        metadata: &Arc<ConsumerGroupMetadata>,
        until: Instant,
    ) -> Result<(), TransactionError> {
        let (answer, answered) = mpsc::channel();
        let (producer, metadata) = (self.producer.clone(), metadata.clone());
        let call = move || {
            let result = retried(until, || producer.send_offsets_to_transaction(&offsets, &metadata, left(until)));
            // Nobody listens where time was over.
            let _ = answer.send(result);
        };
        thread::Builder::new()
            .name("send offsets".to_owned())
            .spawn(call)
            .map_err(|e| TransactionError::Failed(format!("no thread to send offsets: {e}")))?;
        match answered.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(result) => result.map_err(failed("send offsets")),
            Err(_) => Err(TransactionError::Failed("send offsets: no answer in time".to_owned())),
        }
    }

    fn wait_until_acknowledged(&self, until: Instant) -> Result<(), TransactionError> {
        // A commit that finds a record in flight waits 100 ms in the wrapper's own flush.
        while {
            self.serve();
            self.producer.in_flight_count() > 0
        } {
            if Instant::now() >= until {
                let missing = self.producer.in_flight_count();
                return Err(TransactionError::Failed(format!("{missing} records are not acknowledged in time")));
            }
            thread::sleep(IN_FLIGHT_POLL);
        }
        self.producer.context().failure().map_or(Ok(()), |failure| Err(TransactionError::Failed(failure)))
    }

    fn send(&self, record: &OutRecord, until: Instant) -> Result<(), TransactionError> {
        if record.partition < 0 {
            // librdkafka would take this as "any partition".
            return Err(TransactionError::Failed(format!("{} has no partition {}", record.topic, record.partition)));
        }
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in &record.headers {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let mut next =
            BaseRecord::<[u8], [u8]>::to(&record.topic).partition(record.partition).payload(&record.payload).headers(headers);
        next.key = record.key.as_deref();
        loop {
            next = match self.producer.send(next) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) if Instant::now() < until => back,
                Err((error, _)) => return Err(failed("send")(error)),
            };
            self.serve();
            thread::sleep(RETRY_PAUSE);
        }
    }

    fn commit(&self, until: Instant) -> Result<(), TransactionError> {
        let mut asked = false;
        loop {
            let error = match self.producer.commit_transaction(left(until)) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let is_retriable = match &error {
                // The wrapper's flush gave up before it asked anybody to commit.
                KafkaError::Flush(_) => true,
                KafkaError::Transaction(e) if e.is_retriable() => {
                    asked = true;
                    true
                }
                _ => false,
            };
            if !is_retriable || Instant::now() >= until {
                return Err(if asked { TransactionError::Unknown(error.to_string()) } else { failed("commit")(error) });
            }
            thread::sleep(RETRY_PAUSE);
        }
    }
}

/// The error of this call; nothing is committed.
fn failed(call: &'static str) -> impl FnOnce(KafkaError) -> TransactionError {
    move |error| TransactionError::Failed(format!("{call}: {error}"))
}

/// The same call again while it says "retriable", until the limit.
fn retried(until: Instant, mut call: impl FnMut() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    loop {
        match call() {
            Err(KafkaError::Transaction(e)) if e.is_retriable() && Instant::now() < until => thread::sleep(RETRY_PAUSE),
            result => return result,
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).clamp(RETRY_PAUSE, CALL_LIMIT)
}

/// What was reported about the records of the current transaction.
struct Reports {
    events: String,
    current: Mutex<Reported>,
}

#[derive(Default)]
struct Reported {
    failed: usize,
    first_failure: String,
    /// Offset after the last event.
    end: i64,
}

impl Reports {
    fn failure(&self) -> Option<String> {
        let current = self.current.lock();
        (current.failed > 0).then(|| format!("{} records failed, the first with: {}", current.failed, current.first_failure))
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        kafka::log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        kafka::log_error(&error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): Self::DeliveryOpaque) {
        let mut current = self.current.lock();
        match result {
            Ok(message) if message.topic() == self.events => current.end = current.end.max(message.offset() + 1),
            Ok(_) => {}
            Err((error, _)) => {
                if current.failed == 0 {
                    current.first_failure = error.to_string();
                }
                current.failed += 1;
            }
        }
    }
}
