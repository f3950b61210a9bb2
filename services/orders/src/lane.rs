//! One lane: the worker of one partition, on a thread of its own, with its own transactional producer and its own database connection.
//!
//! Take a batch; decide it in one Postgres transaction, which also stores the records to send; publish those in one Kafka transaction with
//! the group's offset, while the next batch, where it waits already, is decided up to its COMMIT. A crash in between loses nothing: the
//! records are in the position row, and whoever owns the partition next publishes what the log does not have yet ([`crate::recover`]). A frozen lane that wakes up is refused three times over: by the position, by its
//! transactional id and by the group's generation.

use std::{
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use events::{Codec, DecodeError};
use infra::{
    crash,
    kafka::PartitionReader,
    postgres::{
        OutRecord,
        lane::{LaneSession, Wanted},
    },
    watchdog::Beat,
};
use publish::{LaneProducer, TransactionError};
use rand::Rng;
use tokio::{runtime::Runtime, sync::OwnedSemaphorePermit};

use crate::{
    Service,
    decide_batch::{self, Decoded},
    mailbox::{Answer, Batch, Health, Mail, Mailbox, Metadata, Question, Told},
    next_step::{LaneError, Next, next_step},
};

/// Markers follow an acknowledged commit within milliseconds; after this long the lane looks closer.
const STABLE_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks at whether they are there.
const STABLE_POLL: Duration = Duration::from_millis(1);
/// Longest wait of a decided batch for the one before it to be published; then it is decided again. A transaction of a thousand records takes
/// tens of milliseconds. As long as another owner waits for the position, which is locked meanwhile.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a turn. Lanes that hold theirs for longer wait for a server, and take no processor time meanwhile.
const TURN_LIMIT: Duration = Duration::from_millis(50);
/// First pause after a failed attempt; it doubles up to the configured maximum.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Failed attempts in a row after which the service counts as not ready.
const TROUBLE_AFTER: u32 = 3;
/// Batches in a row that begin beyond where the lane had the consumer go; then there is no record to be had there. Some are possible
/// without that: what was fetched before a seek can come out after it.
const FRUITLESS_RECOVERIES: u32 = 5;

/// Where a lane stands. The order of steps is the protocol: see `docs/ARCHITECTURE.md` ("The orders service").
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Phase {
    /// Get a producer, which aborts and fences whoever had the partition before.
    #[strum(serialize = "new producer")]
    NewProducer,
    /// Look into Postgres and the log where the partition stands.
    Recover,
    /// Send what Postgres has committed. `is_recovery`: afterwards the consumer must still be sent to `next_offset`.
    Publish {
        records: Vec<OutRecord>,
        next_offset: i64,
        is_recovery: bool,
    },
    /// Have the consumer continue here.
    Seek {
        offset: i64,
    },
    /// Wait for a batch.
    Idle,
    Decide(Batch),
    /// Ask whether the partition is still ours.
    Ask,
    Stopped,
    Ended,
}

pub(crate) struct Lane {
    pub(crate) service: Arc<Service>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) partition: i32,
    pub(crate) runtime: Runtime,
    pub(crate) session: Option<LaneSession>,
    pub(crate) producer: Option<Arc<LaneProducer>>,
    /// Up to here the events topic must be stable before the records stored for them may be overwritten.
    unstable_below: Option<i64>,
    /// Offset of the next request to decide; true between recovery and the next error.
    expected: i64,
    seek: u64,
    /// Unreadable requests in a row so far.
    unreadable_in_a_row: u64,
    failures: u32,
    /// Batches in a row that began elsewhere although the consumer was sent to where the lane stands.
    elsewhere: u32,
    /// Where reading `order-events` can go on, while events are folded chunk by chunk: (request offset, event offset).
    pub(crate) fold_from: Option<(i64, i64)>,
    /// The events topic's reader, for as long as recovery goes on.
    pub(crate) log: Option<PartitionReader>,
    /// See [`Service::turns`].
    turn: Option<OwnedSemaphorePermit>,
    beat: Arc<Beat>,
}

/// Starts the lane of an assignment. It ends by itself once its mailbox says so.
pub(crate) fn start(service: Arc<Service>, mailbox: Arc<Mailbox>, assignment: u64) -> std::io::Result<JoinHandle<()>> {
    let partition = mailbox.partition;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name(format!("lane-{partition}")).spawn(move || {
        let _entered = tracing::info_span!("lane", partition, assignment).entered();
        // Also where a defect makes the thread panic, the consumer must not wait for it, and readiness must know.
        let ended = EndOnDrop(mailbox.clone());
        let beat = service.beats.add(format!("lane {partition}"));
        Lane {
            service,
            mailbox,
            partition,
            runtime,
            session: None,
            producer: None,
            unstable_below: None,
            expected: -1,
            seek: 0,
            unreadable_in_a_row: 0,
            failures: 0,
            elsewhere: 0,
            fold_from: None,
            log: None,
            turn: None,
            beat,
        }
        .work(ended);
    })
}

struct EndOnDrop(Arc<Mailbox>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set_health(Health::Stopped("its thread panicked".to_owned()));
        }
        self.0.end();
    }
}

impl Lane {
    /// A long step goes on: the watchdog counts anew.
    pub(crate) fn attempt(&self, what: &'static str) {
        self.beat.begin(what);
    }

    fn work(mut self, ended: EndOnDrop) {
        let mut phase = Phase::NewProducer;
        while !matches!(phase, Phase::Ended) {
            let is_busy = matches!(phase, Phase::Decide(_) | Phase::Publish { .. });
            match self.mailbox.told() {
                Told::Abandon => break,
                Told::Finish if !is_busy => break,
                Told::Finish | Told::Work => {}
            }
            self.beat.begin((&phase).into());
            let result = self.step(&mut phase);
            self.beat.end();
            phase = match result {
                Ok(next) => next,
                Err(error) => {
                    let what: &'static str = (&phase).into();
                    self.after(error, phase, what)
                }
            };
        }
        tracing::debug!("ends");
        // First the word that it has ended: dropping the producer may take half a second that nobody needs to wait for.
        drop(ended);
    }

    fn step(&mut self, phase: &mut Phase) -> Result<Phase, LaneError> {
        match phase {
            Phase::NewProducer => {
                self.producer = None;
                self.producer = Some(Arc::new(LaneProducer::start(&self.service.config.connections, self.partition)?));
                Ok(Phase::Recover)
            }
            Phase::Recover => {
                self.mailbox.set_health_unless_troubled(Health::Recovering);
                self.service.metrics.recoveries.inc();
                self.recover()
            }
            Phase::Publish { records, next_offset, is_recovery } => {
                let Some(producer) = self.producer.clone() else { return Ok(Phase::NewProducer) };
                self.wait_for_turn();
                let next = if *is_recovery { None } else { self.mailbox.next_at(self.seek, *next_offset) };
                let Some(batch) = next else { return self.publish(&producer, records, *next_offset, *is_recovery) };
                let (published, decided) = self.publish_and_decide(&producer, records, *next_offset, &batch);
                published?;
                *phase = Phase::Decide(batch);
                decided
            }
            Phase::Seek { offset } => Ok(self.seek(*offset)),
            Phase::Idle => self.idle(),
            Phase::Decide(batch) => {
                self.mailbox.set_working_on(batch.appended_at());
                let (service, mailbox, end) = (self.service.clone(), self.mailbox.clone(), self.unstable_below);
                self.decide(batch, self.expected, || wait_until_stable(&service, &mailbox, end))
            }
            Phase::Ask => Ok(self.ask()),
            Phase::Stopped => {
                self.beat.end();
                self.mailbox.pause(None);
                Ok(Phase::Ended)
            }
            Phase::Ended => Ok(Phase::Ended),
        }
    }

    /// What comes after an error: the table.
    fn after(&mut self, error: LaneError, failed: Phase, what: &'static str) -> Phase {
        self.service.metrics.retry(what);
        let next = next_step(&error);
        self.turn = None;
        if next == Next::Stop {
            tracing::error!(%error, step = what, "the lane stops; its partition is kept and not processed");
            self.mailbox.set_health(Health::Stopped(error.to_string()));
            self.service.metrics.stopped(self.partition);
            self.close_session();
            (self.producer, self.log) = (None, None);
            return Phase::Stopped;
        }
        self.failures += 1;
        if self.failures == 1 {
            tracing::warn!(%error, step = what, ?next, "the lane goes back");
        } else {
            tracing::debug!(%error, step = what, ?next, failures = self.failures, "the lane goes back");
        }
        if self.failures >= TROUBLE_AFTER {
            self.mailbox.set_health(Health::Troubled(error.to_string()));
        }
        if self.mailbox.told() > Told::Work {
            // One try is what a revoke waits for; the next owner publishes what is committed.
            return Phase::Ended;
        }
        if next == Next::Ask {
            self.producer = None;
        }
        if next == Next::Again || self.failures > 1 {
            self.back_off();
        }
        match next {
            Next::Again => failed,
            Next::Recover => Phase::Recover,
            Next::Ask => Phase::Ask,
            Next::Stop => Phase::Stopped,
        }
    }

    fn back_off(&self) {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        let longest = doubled.min(self.service.config.retry_max);
        self.mailbox.pause(Some(longest.mul_f64(rand::rng().random_range(0.5..1.0))));
    }

    fn went_well(&mut self) {
        if self.failures >= TROUBLE_AFTER {
            tracing::info!(failures = self.failures, "the lane goes on");
        }
        self.failures = 0;
        self.mailbox.set_health(Health::Working);
    }

    /// An answer of "mine" comes with fresh metadata in the mailbox.
    fn ask(&mut self) -> Phase {
        self.beat.end();
        match self.mailbox.ask(Question::Stands) {
            Some(Answer::Mine) => Phase::NewProducer,
            _ => Phase::Ended,
        }
    }

    fn seek(&mut self, offset: i64) -> Phase {
        self.beat.end();
        (self.log, self.fold_from) = (None, None);
        crash::point("orders.seek");
        let Some(Answer::Sought(seek)) = self.mailbox.ask(Question::Seek(offset)) else { return Phase::Ended };
        self.expected = offset;
        self.seek = seek;
        self.mailbox.set_position(offset);
        tracing::debug!(offset, seek, "continues");
        self.mailbox.set_health_unless_troubled(Health::Working);
        Phase::Idle
    }

    fn idle(&mut self) -> Result<Phase, LaneError> {
        self.beat.end();
        match self.mailbox.next(self.service.config.idle_check) {
            Mail::Batch => {
                self.wait_for_turn();
                let taken = self.mailbox.take().map_or(Ok(Phase::Idle), |batch| self.take(batch));
                if matches!(taken, Ok(Phase::Idle)) {
                    self.turn = None;
                }
                taken
            }
            Mail::Recover => Err(LaneError::CannotRead),
            Mail::Told => Ok(Phase::Ended),
            Mail::Nothing => {
                self.beat.begin("idle check");
                if let Some(producer) = &self.producer {
                    producer.serve();
                }
                let found = self.with_database(async |session| session.next_offset().await)?;
                if found == self.expected {
                    self.went_well();
                    Ok(Phase::Idle)
                } else {
                    Err(LaneError::PositionDiffers { found, expected: self.expected })
                }
            }
        }
    }

    /// Waits its turn, but not for long: it paces, and locks nobody out.
    fn wait_for_turn(&mut self) {
        if self.turn.is_none() {
            let turn = Arc::clone(&self.service.turns).acquire_owned();
            let taken = self.runtime.block_on(async { tokio::time::timeout(TURN_LIMIT, turn).await });
            self.turn = taken.ok().and_then(Result::ok);
        }
    }

    fn take(&mut self, batch: Batch) -> Result<Phase, LaneError> {
        if batch.seek != self.seek {
            self.service.metrics.stale_batches.inc();
            return Ok(Phase::Idle);
        }
        if batch.first != self.expected {
            self.service.metrics.stale_batches.inc();
            self.elsewhere += 1;
            if self.elsewhere > FRUITLESS_RECOVERIES && batch.first > self.expected {
                return Err(LaneError::Gap { offset: self.expected });
            }
            return Err(LaneError::BatchElsewhere { first: batch.first, expected: self.expected });
        }
        self.elsewhere = 0;
        Ok(Phase::Decide(batch))
    }

    /// Decides a batch in one transaction; `may_commit` is asked, and waited for, when all is done but its COMMIT, which overwrites the
    /// records of the batch before.
    fn decide(
        &mut self,
        batch: &Batch,
        expected: i64,
        may_commit: impl FnOnce() -> Result<(), LaneError>,
    ) -> Result<Phase, LaneError> {
        let started = Instant::now();
        let max_in_a_row = self.service.config.max_dead_letters;
        let decoded = decide_batch::decode(&batch.records, self.unreadable_in_a_row, max_in_a_row, |record| {
            self.read(|codec| codec.decode_request(&record.payload))
        })?;
        self.service.metrics.step("decode", started.elapsed());

        let (started, mut waited) = (Instant::now(), Duration::ZERO);
        let (records, events) = self.decide_in_transaction(batch, &decoded, expected, || {
            let began = Instant::now();
            may_commit()?;
            waited = began.elapsed();
            crash::point("orders.stable");
            Ok(())
        })?;
        crash::point("orders.committed");
        self.service.metrics.step("decide", started.elapsed().saturating_sub(waited));
        self.unstable_below = None;
        self.unreadable_in_a_row = decoded.unreadable_in_a_row;
        for event in &events {
            self.service.metrics.event(event);
        }
        self.service.metrics.dead_letters.inc_by((records.len() - events.len()) as u64);
        Ok(Phase::Publish { records, next_offset: batch.end(), is_recovery: false })
    }

    /// Decodes, learning the schema where it is not known yet.
    pub(crate) fn read<T>(&self, decode: impl Fn(&Codec) -> Result<T, DecodeError>) -> Result<Result<T, DecodeError>, LaneError> {
        let codec = &self.service.codec;
        loop {
            match decode(codec) {
                Err(DecodeError::UnknownSchema(id)) => {
                    // Lanes that meet the same new id ask the registry one after the other, each with its own time limit.
                    self.beat.end();
                    // On the service's runtime: the registry's client keeps connections that no lane's own runtime would drive.
                    let learned = self.service.handle.block_on(codec.learn(id));
                    self.beat.begin("decode");
                    learned?;
                }
                read => return Ok(read),
            }
        }
    }

    fn decide_in_transaction(
        &mut self,
        batch: &Batch,
        decoded: &Decoded,
        expected: i64,
        may_commit: impl FnOnce() -> Result<(), LaneError>,
    ) -> Result<(Vec<OutRecord>, Vec<&'static str>), LaneError> {
        let service = self.service.clone();
        let (wanted, end) = (Wanted::by_requests(&decoded.requests), batch.end());
        let decision = self.in_transaction(async |transaction| {
            let (found, mut facts) = transaction.lock_and_read(&wanted).await?;
            if found != expected {
                return Err(LaneError::PositionDiffers { found, expected });
            }
            let topics = &service.config.connections.topics;
            let decision = decide_batch::decide_all(&service.codec, topics, &batch.records, decoded, &mut facts)?;
            transaction.write(&facts, &decision.events, expected, end, &decision.records).await?;
            crash::point("orders.decided");
            // Blocks: nothing else runs on this runtime, and nothing is on its way to Postgres.
            may_commit()?;
            Ok(decision)
        })?;
        Ok((decision.records, decision.events.iter().map(|e| e.body.name()).collect()))
    }

    fn publish(
        &mut self,
        producer: &LaneProducer,
        records: &[OutRecord],
        next_offset: i64,
        is_recovery: bool,
    ) -> Result<Phase, LaneError> {
        if is_recovery {
            crash::point("orders.republish");
        }
        // The newest that the consumer has handed over, which is that of the revoke where there is one.
        let metadata = self.mailbox.metadata();
        self.unstable_below = Some(published(&self.service, producer, records, next_offset, &metadata)?);
        if is_recovery {
            self.turn = None;
            tracing::info!(records = records.len(), next_offset, "published what Postgres had and the log had not");
            return Ok(Phase::Seek { offset: next_offset });
        }
        self.is_published_up_to(next_offset);
        Ok(Phase::Idle)
    }

    /// Publishes on a thread of its own while the next batch is decided. Says what became of both; only what is published may be followed.
    fn publish_and_decide(
        &mut self,
        producer: &LaneProducer,
        records: &[OutRecord],
        next_offset: i64,
        batch: &Batch,
    ) -> (Result<(), LaneError>, Result<Phase, LaneError>) {
        let (service, mailbox) = (self.service.clone(), self.mailbox.clone());
        let metadata = mailbox.metadata();
        let (tell, told) = mpsc::channel();
        let mut end = None;
        let decided = thread::scope(|scope| {
            let (service, metadata) = (&service, &metadata);
            // Nobody listens where deciding has failed first: then the channel is looked at below.
            let call = move || {
                let _ = tell.send(published(service, producer, records, next_offset, metadata));
            };
            let thread = thread::Builder::new().name(format!("publish-{}", mailbox.partition));
            thread.spawn_scoped(scope, call).map_err(|e| TransactionError::Failed(format!("no thread to publish: {e}")))?;
            self.decide(batch, next_offset, || match end.insert(hear(&told, &mailbox)?) {
                Ok(end) => wait_until_stable(service, &mailbox, Some(*end)),
                Err(_) => Err(LaneError::GivenUp),
            })
        });
        // The scope has waited for the thread, so what it said is there.
        match end.or_else(|| told.recv().ok()) {
            Some(Ok(end)) => {
                if decided.is_err() {
                    self.unstable_below = Some(end);
                }
                self.is_published_up_to(next_offset);
                self.mailbox.set_working_on(batch.appended_at());
                (Ok(()), decided)
            }
            Some(Err(error)) => (Err(error.into()), decided),
            // There was no thread, which is what deciding says, too.
            None => (decided.map(|_| ()), Err(LaneError::GivenUp)),
        }
    }

    fn is_published_up_to(&mut self, next_offset: i64) {
        let decided = usize::try_from(next_offset - self.expected).unwrap_or_default();
        self.service.metrics.published(self.partition, decided);
        self.expected = next_offset;
        self.mailbox.set_position(next_offset);
        self.turn = None;
        self.went_well();
    }
}

/// Publishes one batch: the offset after its last event.
fn published(
    service: &Service,
    producer: &LaneProducer,
    records: &[OutRecord],
    next_offset: i64,
    metadata: &Metadata,
) -> Result<i64, TransactionError> {
    let started = Instant::now();
    let end = producer.publish(records, next_offset, metadata)?;
    crash::point("orders.published");
    service.metrics.step("publish", started.elapsed());
    Ok(end)
}

/// What became of the batch that is being published. Gives up on it, and with it what is locked meanwhile, where that takes too long or the
/// partition is lost.
fn hear(
    told: &mpsc::Receiver<Result<i64, TransactionError>>,
    mailbox: &Mailbox,
) -> Result<Result<i64, TransactionError>, LaneError> {
    let until = Instant::now() + PUBLISH_PATIENCE;
    loop {
        match told.recv_timeout(STABLE_POLL) {
            Ok(published) => return Ok(published),
            Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < until && mailbox.told() < Told::Abandon => {}
            Err(_) => return Err(LaneError::GivenUp),
        }
    }
}

/// Waits until the last batch, which ended below `end`, is stable in the log. The broker acknowledges a commit before it writes the markers
/// that make it visible; where it dies in between, they may never be written, and the batch must still be in the position row.
fn wait_until_stable(service: &Service, mailbox: &Mailbox, end: Option<i64>) -> Result<(), LaneError> {
    let Some(end) = end else { return Ok(()) };
    let started = Instant::now();
    loop {
        let stable = service.probe.stable_events(mailbox.partition)?;
        if stable >= end {
            service.metrics.step("stable", started.elapsed());
            return Ok(());
        }
        if started.elapsed() >= STABLE_LIMIT {
            return Err(LaneError::NotStable { end, stable });
        }
        mailbox.pause(Some(STABLE_POLL));
        if mailbox.told() == Told::Abandon {
            return Err(LaneError::GivenUp);
        }
    }
}
